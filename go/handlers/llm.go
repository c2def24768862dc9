// Package handlers has the task types that every worker knows: `llm`, one Chat Completions call.
package handlers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	defaultBaseURL = "https://api.openai.com/v1"
	noKey          = "no-key-configured" // for a provider of one's own that asks for none
)

type chatProvider struct {
	cfg      worker.Config
	images   *downloader
	client   *http.Client
	single   *http.Client // each call on a connection of its own, where it matters whether it was delivered
	maxBytes int64
}

// LLM is the handler for task type `llm`: a prompt with images, or messages, and any Chat Completions parameter.
// It fails for a TASKGATE_MEDIA_ALLOW that cannot be read. There is no retry in it: the one retry layer is the
// persisted one.
func LLM(cfg worker.Config) (worker.Func, error) {
	images, err := newDownloader(cfg.MediaAllow, cfg.MediaMaxBytes, cfg.MediaMaxPixels)
	if err != nil {
		return nil, &worker.ConfigError{Message: "TASKGATE_MEDIA_ALLOW: " + err.Error()}
	}
	single := providerTransport(1)
	single.DisableKeepAlives = true
	return (&chatProvider{
		cfg: cfg, images: images,
		// a result above MaxResultBytes is refused anyway; around it, the raw answer holds it once more
		maxBytes: 2*int64(cfg.MaxResultBytes) + 1<<20,
		client:   &http.Client{Transport: providerTransport(cfg.Slots), CheckRedirect: noRedirects},
		single:   &http.Client{Transport: single, CheckRedirect: noRedirects},
	}).run, nil
}

func notConfigured(words string) error {
	return worker.Permanent("%s", words).WithCode("not_configured")
}

func (p *chatProvider) run(ctx context.Context, task *worker.Task) (any, error) {
	request, err := parseRequest(task.Request)
	if err != nil {
		return nil, err
	}
	route, err := p.route(ctx, task, request.model)
	if err != nil {
		return nil, err
	}
	if p.cfg.LLMFailAmbiguous && task.Paid != nil && !truthy(task.Paid.Operation) {
		return nil, ambiguous(map[string]any{"submit": map[string]any{"why": "an earlier attempt was stopped in the send", "account": task.Paid.Account}})
	}
	if p.cfg.InlineImages {
		if request.messages, err = inlineImages(ctx, request.messages, p.images.with(route.base), 4*p.cfg.MediaMaxBytes); err != nil {
			return nil, err
		}
	}
	body := append(object{{"messages", rawList(request.messages)}, {"model", encode(route.model)}}, request.parameters...).raw()
	if p.cfg.LLMFailAmbiguous {
		return p.once(ctx, task, route, body)
	}
	found, err := p.call(p.client, ctx, route, body, nil, task.Timeout)
	if err != nil {
		return nil, err
	}
	return route.rules.judge(found)
}

func (p *chatProvider) call(client *http.Client, ctx context.Context, route chatRoute, body []byte, way *sent, timeout time.Duration) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, route.endpoint, bytes.NewReader(body))
	if err != nil {
		return answer{}, notConfigured("the provider cannot be called: check " + route.setting)
	}
	if way != nil {
		request = way.watch(request)
	}
	request.Header.Set("Authorization", "Bearer "+cmp.Or(route.key, noKey))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "taskgate-worker/"+worker.Version)
	response, err := client.Do(request)
	if err != nil {
		return answer{}, failure(ctx, route, err, timeout)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, p.maxBytes+1))
	if err != nil {
		return answer{}, failure(ctx, route, err, timeout)
	}
	if int64(len(content)) > p.maxBytes {
		return answer{}, worker.Permanent("the provider's answer is larger than %d bytes: ask for less, or raise TASKGATE_MAX_RESULT_BYTES", p.maxBytes).WithCode("answer_too_large")
	}
	return answer{response.StatusCode, response.Header, content}, nil
}

func failure(ctx context.Context, route chatRoute, err error, timeout time.Duration) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the call was stopped: %w", context.Cause(ctx))
	}
	err = withoutURL(err)
	return judgeFailure(failureKind(err), redact(err.Error(), route.rules.secrets, maxWords), timeout)
}
