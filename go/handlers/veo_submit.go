package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// Paid once: the intent is written before the send, the operation's handle right after the answer. What is neither
// surely refused nor surely undelivered is unknown, and is not silently sent again.

// operation is the handle of what was submitted, as it is saved.
type operation struct {
	Name         string    `json:"name"`
	API          string    `json:"api"`
	Model        string    `json:"model"`
	SubmittedAt  time.Time `json:"submitted_at"`
	AudioRetries int       `json:"audio_retries,omitempty"`
	Closed       string    `json:"closed,omitempty"`
	Unwanted     bool      `json:"cancel_requested,omitempty"` // the task was cancelled while nobody followed it
}

const (
	lastWords    = 4 * time.Second // a submission under way, and what it answers, get so long after the attempt's end
	maxAnswer    = 8 << 20         // of JSON, without the videos in it
	longString   = 64 << 10        // a longer string in an answer is a video
	userAgentFor = "taskgate-worker/"
)

// linger is a context that ends some time after another. A cancelled task ends it at once, unless the answer to what it
// sent has begun: that may name what has to be cancelled. Without sent nothing ends it at once.
func linger(ctx context.Context, after time.Duration, way *sent) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if way != nil && !way.answering.Load() && errors.Is(context.Cause(ctx), worker.ErrCancelled) {
			cancel()
			return
		}
		timer := time.AfterFunc(after, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}

// submit sends the request, and gives the operation that it began.
func (v *videoProvider) submit(ctx context.Context, task *worker.Task, route *videoRoute, request videoRequest, with videoInputs, audioRetries int) (operation, error) {
	path, body := route.submission(route, request, with)
	var way sent
	sending, cancel := linger(ctx, lastWords, &way)
	defer cancel()
	sending, stop := context.WithTimeoutCause(sending, v.cfg.VeoSubmit, errNoAnswer)
	defer stop()
	post, err := http.NewRequestWithContext(sending, http.MethodPost, route.endpoint+path, bytes.NewReader(body.raw()))
	if err != nil {
		return operation{}, notConfigured("the video provider cannot be called: check its base URL")
	}
	token, err := route.authorize(ctx, post)
	if err != nil { // before the intent: a token that cannot be had is no submission
		return operation{}, err
	}
	v.describe(post)
	if err := v.intend(ctx, task, route); err != nil {
		return operation{}, err
	}
	found, err := v.send(v.submitting, way.watch(post))
	if err != nil && way.undelivered() {
		return operation{}, v.undelivered(ctx, task, route, err)
	}
	if err != nil {
		if context.Cause(sending) == errNoAnswer {
			err = fmt.Errorf("no whole answer in %g s", v.cfg.VeoSubmit.Seconds())
		}
		return operation{}, v.unknown(ctx, task, route, redact(withoutURL(err).Error(), route.secrets(), 500))
	}
	return v.accepted(ctx, task, route, found, token, audioRetries)
}

var errNoAnswer = errors.New("the time is up")

// intend writes the intent. If it is not known whether that was done, it is taken back.
func (v *videoProvider) intend(ctx context.Context, task *worker.Task, route *videoRoute) error {
	err := task.Intend(ctx, route.account(), v.cfg.RetryAmbiguous)
	if err != nil && !errors.Is(err, worker.ErrLeaseLost) {
		takeBack(ctx, task)
	}
	return err
}

func (v *videoProvider) undelivered(ctx context.Context, task *worker.Task, route *videoRoute, err error) error {
	takeBack(ctx, task)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	words := redact(withoutURL(err).Error(), route.secrets(), maxWords)
	told := map[string]any{"provider": map[string]any{"status": nil, "message": words}, "delivery": "none"}
	return worker.Retry("the provider cannot be reached: %s", words).WithCode("provider_unavailable").WithInfo(told)
}

// unknown ends an attempt of which nobody knows whether the provider accepted it.
func (v *videoProvider) unknown(ctx context.Context, task *worker.Task, route *videoRoute, words string) error {
	if errors.Is(context.Cause(ctx), worker.ErrCancelled) {
		return worker.ErrCancelled
	}
	told := map[string]any{"submit": map[string]any{"why": words, "account": route.account()}}
	if v.cfg.RetryAmbiguous {
		return worker.Retry("the submission may or may not have been taken (%s): sent again", words).WithCode("submit_unknown").WithInfo(told)
	}
	return ambiguous(told)
}

func ambiguous(told any) error {
	return worker.Permanent("submit_ambiguous").WithCode("submit_ambiguous").WithInfo(told)
}

// unknownFate is true for the answers of gateways that gave up or lost the connection behind them (520 to 524:
// Cloudflare's). They say nothing of the call itself, which may have been taken; 500, 503 and 429 are the provider's
// own word that it was not.
func unknownFate(status int) bool {
	return status == 408 || status == 499 || status == 502 || status == 504 || status >= 520 && status <= 524
}

// accepted reads the answer to a submission.
func (v *videoProvider) accepted(ctx context.Context, task *worker.Task, route *videoRoute, found answer, token string, audioRetries int) (operation, error) {
	success := found.status >= 200 && found.status < 300
	if !success && !unknownFate(found.status) {
		takeBack(ctx, task)
		if found.status == http.StatusUnauthorized && token != "" {
			route.credentials.forget(token)
		}
		return operation{}, v.refused(route, found)
	}
	name := ""
	if body, err := parseObject(found.body); err == nil && success {
		name = route.handle(body)
	}
	if name == "" {
		return operation{}, v.unknown(ctx, task, route, fmt.Sprintf("the provider answered %d, and no operation", found.status))
	}
	begun := operation{Name: name, API: route.name(), Model: route.model, SubmittedAt: time.Now().UTC().Truncate(time.Millisecond), AudioRetries: audioRetries}
	saving, cancel := linger(ctx, lastWords, nil)
	defer cancel()
	if err := task.SaveOperation(saving, begun); err != nil {
		if errors.Is(err, worker.ErrEndedCancelled) {
			_ = newFollower(v, task, route, begun).cancel(ctx)
		}
		if errors.Is(err, worker.ErrLeaseLost) || ctx.Err() != nil {
			return begun, err
		}
		return begun, v.unknown(ctx, task, route, "the operation "+name+" could not be saved: "+err.Error())
	}
	return begun, nil
}

var noSuchModel = regexp.MustCompile(`(?i)\bmodels?\b.*\b(not found|not supported|no longer|does not exist|unknown|deprecated|retired)`)

// refused is the error for a submission that the provider did not take.
func (v *videoProvider) refused(route *videoRoute, found answer) error {
	rules := rules{maxThrottle: v.cfg.MaxThrottle, secrets: route.secrets()}
	p := rules.problemOf(found.body)
	told := info(found, p, found.status)
	switch err := rules.refusal(found, found.status, p); {
	case found.status == 404, found.status == 400 && noSuchModel.MatchString(err.Error()):
	case found.status == 400 && wordsOfAFilter.MatchString(err.Error()):
		return worker.Permanent("%s", err).WithCode("content_filtered").WithInfo(told)
	default:
		return err
	}
	if instead := replacement(route.name(), route.model); instead != "" {
		return worker.Permanent(`the provider has no model '%s' any more (%d: %s): use '%s' instead, or set TASKGATE_MODEL_ALIASES="%s=%s"`,
			route.model, found.status, p.message, instead, route.model, instead).WithCode("model_retired").WithInfo(told)
	}
	return worker.Permanent("the provider has no model '%s' (%d: %s): name another one, or set TASKGATE_MODEL_ALIASES", route.model, found.status, p.message).WithCode("model_not_found").WithInfo(told)
}

// retired are the models that Google has switched off on the Gemini API.
var retired = regexp.MustCompile(`^(veo-(2\.0|3\.0|3\.0-fast)-generate-001|veo-3\.1(-fast|-lite)?-generate-preview|gemini-omni-flash-preview)$`)

// replacement is what the vendor names in a retired model's place; empty for a model that is not known to be retired.
func replacement(api, model string) string {
	if api != "vertex" && retired.MatchString(model) {
		return "gemini-omni-1.1-flash"
	}
	return ""
}

func (v *videoProvider) describe(request *http.Request) {
	if request.Body != nil && request.Body != http.NoBody {
		request.Header.Set("Content-Type", "application/json")
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", userAgentFor+worker.Version)
}

// send gives a short answer whole.
func (v *videoProvider) send(client *http.Client, request *http.Request) (answer, error) {
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return answer{response.StatusCode, response.Header, content}, err
}
