package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	pollsAtOnce     = 32
	downloadsAtOnce = 4
	missingPause    = 10 * time.Second // before somebody else may have the account or upstream
)

// videoProvider makes videos with whatever API the task's route speaks.
type videoProvider struct {
	cfg         worker.Config
	images      *downloader
	videos      *downloader
	credentials credentialStore
	submitting  *http.Client // each call on a connection of its own: one that the server just closed looks like a drop
	polling     *http.Client
	fetching    *http.Client // of what was made
	polls       chan struct{}
	downloads   chan struct{}
}

// Veo is the handler for task type `veo`: a video, by Google's operations, Vertex or Interactions. What was paid for
// is followed by whoever has the task next. It fails for a TASKGATE_MEDIA_ALLOW that cannot be read.
func Veo(cfg worker.Config) (worker.Func, error) {
	images, err := newDownloader(cfg.MediaAllow, cfg.MediaMaxBytes, cfg.MediaMaxPixels)
	if err != nil {
		return nil, &worker.ConfigError{Message: "TASKGATE_MEDIA_ALLOW: " + err.Error()}
	}
	videos, err := newDownloader(cfg.MediaAllow, cfg.MediaMaxVideoBytes, cfg.MediaMaxPixels)
	if err != nil {
		return nil, &worker.ConfigError{Message: "TASKGATE_MEDIA_ALLOW: " + err.Error()}
	}
	own := providerTransport(1)
	own.DisableKeepAlives = true
	shared := providerTransport(min(cfg.Slots, pollsAtOnce))
	v := &videoProvider{
		cfg: cfg, images: images, videos: videos,
		submitting: &http.Client{Transport: own, CheckRedirect: noRedirects},
		polling:    &http.Client{Transport: shared, CheckRedirect: noRedirects},
		polls:      make(chan struct{}, pollsAtOnce),
		downloads:  make(chan struct{}, downloadsAtOnce),
	}
	v.fetching = &http.Client{Transport: v.guarded(), CheckRedirect: noRedirects}
	v.credentials.client = &http.Client{Transport: tokenTransport(), CheckRedirect: noRedirects}
	return v.run, nil
}

func (v *videoProvider) run(ctx context.Context, task *worker.Task) (any, error) {
	request, err := parseVideoRequest(task.Request)
	if err != nil {
		return nil, err
	}
	audioRetries := 0
	if task.Paid != nil {
		var begun *operation
		if err := json.Unmarshal(orNull(task.Paid.Operation), &begun); err != nil {
			return nil, worker.Permanent("the operation of the submitted video cannot be read: %v", err).WithCode("account_not_configured")
		}
		switch {
		case begun != nil && begun.Closed != "":
			audioRetries = begun.AudioRetries
		case begun != nil:
			return v.resume(ctx, task, &request, *begun)
		case !v.cfg.RetryAmbiguous:
			told := map[string]any{"submit": map[string]any{"why": "an earlier attempt was stopped in the send", "account": task.Paid.Account}}
			return nil, ambiguous(told)
		}
	}
	return v.begin(ctx, task, &request, audioRetries)
}

// begin submits, and follows what that began; once more for each retry that the audio filter is given.
func (v *videoProvider) begin(ctx context.Context, task *worker.Task, request *videoRequest, audioRetries int) (any, error) {
	route, err := v.route(ctx, task, task.Upstream, request.model, "", "")
	if err != nil {
		return nil, err
	}
	if err := checkFields(route.name(), *request, route.model); err != nil {
		return nil, err
	}
	for {
		with, err := v.inputs(ctx, route, *request)
		if err != nil {
			return nil, err
		}
		begun, err := v.submit(ctx, task, route, *request, with, audioRetries)
		if err != nil {
			return nil, err
		}
		with = videoInputs{} // they may be large, and an operation takes minutes
		result, err := v.follow(ctx, task, route, request, begun, false)
		var again *audioFiltered
		if !errors.As(err, &again) {
			return result, err
		}
		audioRetries = again.retries
	}
}

// resume follows what an earlier attempt submitted, on the same account.
func (v *videoProvider) resume(ctx context.Context, task *worker.Task, request *videoRequest, begun operation) (any, error) {
	route, wanted, err := v.sameAccount(ctx, task, task.Paid.Account, begun)
	if err != nil {
		return nil, err
	}
	if route == nil {
		if ctx.Err() != nil { // that may be why it was not found
			return nil, notTaken(ctx, context.Cause(ctx))
		}
		words := fmt.Sprintf("the video was submitted on upstream '%s' (%s, %s, project %s, key %s)",
			wanted.Upstream, wanted.API, wanted.Endpoint, cmp.Or(wanted.Project, "none"), cmp.Or(wanted.Key, "none"))
		return nil, v.missing(ctx, task, wanted, words)
	}
	if missed(task).Since > 0 { // it is here: if it goes again, the wait for it begins anew
		if err := task.SaveCheckpoint(ctx, struct{}{}); err != nil {
			return nil, notTaken(ctx, err)
		}
	}
	if begun.Unwanted {
		return nil, newFollower(v, task, route, begun).cancel(ctx)
	}
	result, err := v.follow(ctx, task, route, request, begun, true)
	var again *audioFiltered
	if errors.As(err, &again) {
		return v.begin(ctx, task, request, again.retries)
	}
	return result, err
}

// absence says in the checkpoint since when, in seconds since 1970, workers have missed the account of an operation.
// A retry by hand takes it out.
type absence struct {
	Since float64 `json:"account_missing_since"`
}

func missed(task *worker.Task) (out absence) {
	_ = json.Unmarshal(orNull(task.Checkpoint), &out)
	return out
}

// missing gives the task back, so that a worker that has the account may take it, and ends it after a while.
func (v *videoProvider) missing(ctx context.Context, task *worker.Task, wanted account, words string) error {
	kept := missed(task)
	at := float64(time.Now().UnixMilli()) / 1000
	if kept.Since <= 0 {
		kept.Since = at
		if err := task.SaveCheckpoint(ctx, kept); err != nil {
			return notTaken(ctx, err)
		}
	}
	if at-kept.Since < v.cfg.AccountWait.Seconds() {
		return worker.Snooze(missingPause, "%s, which this worker does not have", words).WithCode("account_not_here")
	}
	return worker.Permanent("%s, which no worker has configured: configure it again and retry the task", words).
		WithCode("account_not_configured").WithInfo(map[string]any{"account": wanted})
}

// audioFiltered asks for another submission: the video was held back for its sound alone.
type audioFiltered struct{ retries int }

func (a *audioFiltered) Error() string { return "the audio filter held the video back" }
