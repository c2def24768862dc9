// Package handlers has the task types that every worker knows: `llm`, one Chat Completions call.
package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	connectSeconds = 10 * time.Second
	defaultBaseURL = "https://api.openai.com/v1"
	noKey          = "no-key-configured" // for a provider of one's own that asks for none
)

type chatProvider struct {
	cfg      worker.Config
	rules    rules
	images   *downloader
	client   *http.Client
	endpoint string
	broken   error // why no call can be made
	maxBytes int64
}

// LLM is the handler for task type `llm`: a prompt with images, or messages, and any Chat Completions parameter.
// It fails for a TASKGATE_MEDIA_ALLOW that cannot be read. There is no retry in it: the one retry layer is the
// persisted one.
func LLM(cfg worker.Config) (worker.Func, error) {
	images, err := newDownloader(cfg.MediaAllow, cfg.MediaMaxBytes)
	if err != nil {
		return nil, &worker.ConfigError{Message: "TASKGATE_MEDIA_ALLOW: " + err.Error()}
	}
	p := &chatProvider{
		cfg: cfg, images: images,
		rules: rules{maxThrottle: cfg.MaxThrottle, keepRaw: cfg.LLMRawResponse},
		// a result above MaxResultBytes is refused anyway; around it, the raw answer holds it once more
		maxBytes: 2*int64(cfg.MaxResultBytes) + 1<<20,
		client: &http.Client{
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment, // never for this machine itself
				DialContext:         (&net.Dialer{Timeout: connectSeconds}).DialContext,
				TLSHandshakeTimeout: connectSeconds,
				MaxIdleConnsPerHost: cfg.Slots,
				IdleConnTimeout:     30 * time.Second,
				DisableCompression:  true, // an inflater costs more memory than an answer
				// HTTP/1.1: a call that is stopped closes its connection, and the provider sees it
				Protocols: http1(),
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if cfg.OpenAIAPIKey != "" {
		p.rules.secrets = []string{cfg.OpenAIAPIKey}
	}
	p.endpoint, p.broken = endpoint(cfg)
	return p.run, nil
}

func http1() *http.Protocols {
	var only http.Protocols
	only.SetHTTP1(true)
	return &only
}

func endpoint(cfg worker.Config) (string, error) {
	base := cfg.OpenAIBaseURL
	if base == "" {
		if cfg.OpenAIAPIKey == "" {
			return "", notConfigured("no chat provider is configured: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own")
		}
		base = defaultBaseURL
	}
	parsed, err := url.Parse(base)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "" {
		return "", notConfigured("OPENAI_BASE_URL must begin with http:// or https://, and name a host")
	}
	for _, char := range cfg.OpenAIAPIKey {
		if char < ' ' || char > '~' {
			return "", notConfigured("OPENAI_API_KEY holds characters that no HTTP header can carry")
		}
	}
	parsed.Path = strings.TrimRight(parsed.Path, "/") + "/chat/completions"
	return parsed.String(), nil
}

func notConfigured(words string) error {
	return worker.Permanent("%s", words).WithCode("not_configured")
}

func (p *chatProvider) run(ctx context.Context, task *worker.Task) (any, error) {
	request, err := parseRequest(task.Request)
	if err != nil {
		return nil, err
	}
	if p.broken != nil {
		return nil, p.broken
	}
	model := request.model
	if model == "" {
		model = p.cfg.LLMModel
	}
	if model == "" {
		return nil, worker.Permanent("no model is named: put model into the task, or set TASKGATE_LLM_MODEL for the worker").WithCode("no_model")
	}
	if p.cfg.InlineImages {
		if request.messages, err = inlineImages(ctx, request.messages, p.images, 4*p.cfg.MediaMaxBytes); err != nil {
			return nil, err
		}
	}
	body := append(object{{"messages", rawList(request.messages)}, {"model", encode(model)}}, request.parameters...)
	found, err := p.call(ctx, body.raw(), task.Timeout)
	if err != nil {
		return nil, err
	}
	return p.rules.judge(found)
}

func (p *chatProvider) call(ctx context.Context, body []byte, timeout time.Duration) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.endpoint, bytes.NewReader(body))
	if err != nil {
		return answer{}, notConfigured("the provider cannot be called: check OPENAI_BASE_URL")
	}
	key := p.cfg.OpenAIAPIKey
	if key == "" {
		key = noKey
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "taskgate-worker/"+worker.Version)
	response, err := p.client.Do(request)
	if err != nil {
		return answer{}, p.failure(ctx, err, timeout)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, p.maxBytes+1))
	if err != nil {
		return answer{}, p.failure(ctx, err, timeout)
	}
	if int64(len(content)) > p.maxBytes {
		return answer{}, worker.Permanent("the provider's answer is larger than %d bytes: ask for less, or raise TASKGATE_MAX_RESULT_BYTES", p.maxBytes).WithCode("answer_too_large")
	}
	return answer{response.StatusCode, response.Header, content}, nil
}

func (p *chatProvider) failure(ctx context.Context, err error, timeout time.Duration) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the call was stopped: %w", context.Cause(ctx))
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // without the URL
	}
	words := redact(err.Error(), p.rules.secrets, maxWords)
	var dial *net.OpError
	var name *net.DNSError
	var slow net.Error
	switch {
	case errors.As(err, &dial) && (dial.Op == "dial" || dial.Op == "proxyconnect"), errors.As(err, &name), isTLS(err.Error()):
		return judgeFailure("connect", words, timeout)
	case errors.As(err, &slow) && slow.Timeout():
		return judgeFailure("timeout", words, timeout)
	}
	return judgeFailure("disconnect", words, timeout)
}

// isTLS knows the errors of a handshake by their words; the standard library gives them no common type.
func isTLS(words string) bool {
	return strings.HasPrefix(words, "tls: ") || strings.HasPrefix(words, "remote error: tls: ") || strings.HasPrefix(words, "x509: ") ||
		strings.Contains(words, "TLS handshake") || strings.Contains(words, "HTTP response to HTTPS client")
}
