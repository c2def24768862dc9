package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/taskgate/taskgate/go/worker"
)

// chatRoute is where a chat goes: an upstream of the table, or what the environment names.
type chatRoute struct {
	upstream, base, endpoint, key string
	setting                       string // where the base URL comes from, for errors
	model                         string
	rules                         rules
}

func (r chatRoute) account() account {
	return account{Upstream: r.upstream, API: "openai", Endpoint: strings.TrimRight(r.base, "/"), Key: digest(r.key)}
}

func (p *chatProvider) route(ctx context.Context, task *worker.Task, wanted string) (chatRoute, error) {
	out := chatRoute{base: p.cfg.OpenAIBaseURL, key: p.cfg.OpenAIAPIKey, setting: "OPENAI_BASE_URL", model: wanted}
	if task.Upstream != "" {
		found, err := findUpstream(ctx, task, task.Upstream)
		if err != nil {
			return out, err
		}
		if found.API != "openai" {
			return out, notConfigured(fmt.Sprintf("upstream '%s' speaks %s, which makes no chats", found.Name, found.API))
		}
		key, err := found.Key()
		if err != nil {
			return out, notConfigured(err.Error())
		}
		out.upstream, out.base, out.key, out.model = found.Name, cmp.Or(found.BaseURL, defaultBaseURL), key, cmp.Or(wanted, found.Model)
		out.setting = fmt.Sprintf("base_url of upstream '%s'", found.Name)
	} else if out.base == "" {
		if out.key == "" {
			return out, notConfigured("no chat provider is configured: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own")
		}
		out.base = defaultBaseURL
	}
	out.model = cmp.Or(out.model, p.cfg.LLMModel)
	if alias, known := p.cfg.ModelAliases[out.model]; known {
		out.model = alias
	}
	if out.key != "" {
		out.rules.secrets = []string{out.key}
	}
	out.rules.maxThrottle, out.rules.keepRaw = p.cfg.MaxThrottle, p.cfg.LLMRawResponse
	parsed, err := url.Parse(out.base)
	switch {
	case err != nil || !isHTTP(out.base):
		return out, notConfigured(out.setting + " must begin with http:// or https://, and name a host")
	case !printable(out.key):
		return out, notConfigured("the chat provider's key holds characters that no HTTP header can carry: check OPENAI_API_KEY, or the upstream's key")
	case out.model == "":
		return out, worker.Permanent("no model is named: put model into the task, or set TASKGATE_LLM_MODEL for the worker").WithCode("no_model")
	}
	parsed.Path = strings.TrimRight(parsed.Path, "/") + "/chat/completions"
	out.endpoint = parsed.String()
	return out, nil
}

// once makes a call that is not silently repeated: its intent is written before, and taken back if the provider
// surely did not do the work.
func (p *chatProvider) once(ctx context.Context, task *worker.Task, route chatRoute, body []byte) (any, error) {
	if err := task.Intend(ctx, route.account(), false); err != nil {
		if !errors.Is(err, worker.ErrLeaseLost) {
			takeBack(ctx, task)
		}
		return nil, err
	}
	var way sent
	found, err := p.call(p.single, ctx, route, body, &way, task.Timeout)
	told := func(why string) any {
		return map[string]any{"submit": map[string]any{"why": why, "account": route.account()}}
	}
	switch {
	case err != nil && way.undelivered():
		takeBack(ctx, task)
		return nil, err
	case ctx.Err() != nil:
		return nil, err
	case err != nil:
		return nil, ambiguous(told(err.Error()))
	case unknownFate(found.status):
		return nil, ambiguous(told(fmt.Sprintf("the provider answered %d", found.status)))
	}
	result, err := route.rules.judge(found)
	if found.status < 200 || found.status >= 300 {
		takeBack(ctx, task)
	}
	return result, err
}

// takeBack withdraws an intent, also when the attempt was just told to stop.
func takeBack(ctx context.Context, task *worker.Task) {
	longer, cancel := linger(ctx, lastWords, nil)
	defer cancel()
	_ = task.Withdraw(longer) // at worst the attempt counts as unknown
}

// findUpstream is an upstream by name.
func findUpstream(ctx context.Context, task *worker.Task, name string) (worker.Upstream, error) {
	found, known, err := task.FindUpstream(ctx, name)
	if err == nil && !known {
		err = worker.Permanent("there is no upstream '%s': add it with `taskgate upstreams apply FILE`, then retry the task", name).WithCode("unknown_upstream")
	}
	return found, err
}
