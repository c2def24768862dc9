package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

var wordsOfAFilter = regexp.MustCompile(`(?i)usage guidelines|safety|responsible ai|sensitive|content polic`)

// end is the result of an operation that is over, or the error that it ended with.
func (f *follower) end(ctx context.Context, state videoState) (any, error) {
	if state.failed == nil && len(state.videos) > 0 {
		return f.result(ctx, state)
	}
	if state.failed == nil {
		return nil, f.filtered(ctx, state)
	}
	words := redact(state.failed.message, f.route.secrets(), maxWords)
	words = orWords(words)
	told := map[string]any{"provider": map[string]any{"code": nil, "message": words}}
	if state.failed.code != 0 {
		told = map[string]any{"provider": map[string]any{"code": state.failed.code, "message": words}}
	}
	closed, err := "failed", error(nil)
	switch {
	case state.cancelled:
		closed = "cancelled"
		err = worker.Permanent("the operation was cancelled at the provider: %s", words).WithCode("operation_cancelled").WithInfo(told)
	case wordsOfAFilter.MatchString(words):
		err = worker.Permanent("the provider's content filter stopped the video: %s", words).WithCode("content_filtered").WithInfo(told)
	case passing(*state.failed):
		err = worker.Retry("the provider could not make the video: %s", words).WithCode("provider_error").WithInfo(told)
	default:
		err = worker.Permanent("the provider did not make the video: %s", words).WithCode("provider_refused").WithInfo(told)
	}
	return nil, f.close(ctx, closed, err)
}

// passing is true for an error of google.rpc.Code that another attempt may not meet.
func passing(e operationError) bool {
	switch e.code {
	case 4, 8, 10, 13, 14: // deadline, exhausted, aborted, internal, unavailable
		return true
	}
	return false
}

// close notes that the operation is over, so that nobody follows it again, and gives err.
func (f *follower) close(ctx context.Context, why string, err error) error {
	f.begun.Closed = why
	longer, cancel := linger(ctx, lastWords, nil)
	defer cancel()
	if wrong := f.task.SaveOperation(longer, f.begun); wrong != nil {
		return wrong
	}
	return err
}

func (f *follower) filtered(ctx context.Context, state videoState) error {
	reasons := append([]string{}, state.reasons...)
	if f.route.name() == "interactions" {
		reasons = append(reasons, state.texts...)
	}
	for i := range reasons {
		reasons[i] = redact(reasons[i], f.route.secrets(), maxWords)
	}
	byAudio := len(reasons) > 0 && !slices.ContainsFunc(reasons, func(each string) bool { return !strings.Contains(strings.ToLower(each), "audio") })
	if byAudio && f.begun.AudioRetries < f.v.cfg.VeoAudioRetries {
		f.begun.AudioRetries++
		return f.close(ctx, "filtered", &audioFiltered{f.begun.AudioRetries})
	}
	told := map[string]any{"filtered": map[string]any{"count": state.filtered, "reasons": reasons}}
	if len(reasons) == 0 && state.filtered == 0 {
		return f.close(ctx, "filtered", worker.Permanent("the operation ended without a video, and without a reason").WithCode("no_video").WithInfo(told))
	}
	words := cmp.Or(strings.Join(reasons, "; "), "no reason was given")
	return f.close(ctx, "filtered", worker.Permanent("the provider's content filter kept the video back: %s", words).WithCode("content_filtered").WithInfo(told))
}

func (f *follower) result(ctx context.Context, state videoState) (any, error) {
	f.tell(ctx, "downloading", "")
	list := make([]json.RawMessage, 0, len(state.videos))
	for _, each := range state.videos {
		ref, err := f.fetch(ctx, each)
		if err != nil {
			return nil, err
		}
		list = append(list, object{{"sha256", encode(ref.SHA256)}, {"bytes", encode(ref.Bytes)}, {"mime", encode(ref.MIME)}, {"url", encode(ref.URL)}, {"uri", encode(orNil(each.uri))}}.raw())
	}
	var seconds, filtered any
	if f.seconds > 0 {
		seconds = f.seconds * len(list)
	}
	if state.filtered > 0 || len(state.reasons) > 0 {
		filtered = map[string]any{"count": state.filtered, "reasons": append([]string{}, state.reasons...)}
	}
	return object{
		{"videos", rawList(list)}, {"model", encode(f.begun.Model)}, {"api", encode(f.route.name())}, {"operation", encode(f.begun.Name)}, {"seconds", encode(seconds)},
		{"elapsed_seconds", encode(float64(time.Since(f.begun.SubmittedAt).Milliseconds()) / 1000)}, {"filtered", encode(filtered)}, {"usage", orNull(state.usage)},
	}.raw(), nil
}
