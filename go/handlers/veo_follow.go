package handlers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	pollPatience = 30 * time.Second // without a byte
	longestPause = time.Minute      // between polls that fail
	longestAsked = 5 * time.Minute
	emptyPolls   = 2 // more, of an interaction that is completed and has no video yet
)

// follow polls an operation to its end, and stores its videos. A poll that fails is not the task's failure: only its
// timeout ends it.
func (v *videoProvider) follow(ctx context.Context, task *worker.Task, route *videoRoute, request *videoRequest, begun operation, resumed bool) (any, error) {
	f := newFollower(v, task, route, begun)
	f.seconds = request.durationSeconds
	// it may hold pictures in base64, and an operation takes minutes
	if task.Request = nil; begun.AudioRetries >= v.cfg.VeoAudioRetries {
		*request = videoRequest{}
	}
	result, err := f.run(ctx, resumed)
	if !f.over && errors.Is(context.Cause(ctx), worker.ErrCancelled) {
		return nil, f.cancel(ctx)
	}
	return result, err
}

type follower struct {
	v       *videoProvider
	task    *worker.Task
	route   *videoRoute
	begun   operation
	seconds int
	stored  map[string]worker.MediaRef // what came inside an answer, by its mark
	number  int                        // of the videos stored
	told    string                     // of the progress
	empty   int
	failed  int // polls, in a row
	over    bool
}

func newFollower(v *videoProvider, task *worker.Task, route *videoRoute, begun operation) *follower {
	return &follower{v: v, task: task, route: route, begun: begun, stored: map[string]worker.MediaRef{}}
}

func (f *follower) run(ctx context.Context, resumed bool) (any, error) {
	wait := spread(f.v.cfg.VeoPoll)
	if resumed { // it may be done long since; not all of a crashed worker's at once
		wait = spread(min(f.v.cfg.VeoPoll, time.Second))
	} else {
		f.tell(ctx, "submitted", "")
	}
	for {
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		state, after, err := f.poll(ctx)
		var steer *worker.TaskError
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, worker.ErrLeaseLost), errors.As(err, &steer) && steer.Outcome() == "permanent":
			return nil, err
		case err != nil:
			f.tell(ctx, "polling", err.Error())
			wait = backingOff(f.v.cfg.VeoPoll, f.failed)
			f.failed++
		case !state.done, f.isEmpty(state):
			f.tell(ctx, "polling", "")
			f.failed = 0
			wait = spread(f.v.cfg.VeoPoll)
		default:
			f.over = true
			return f.end(ctx, state)
		}
		if after != nil && *after > 0 {
			wait = min(max(*after, 10*time.Millisecond), longestAsked)
		}
	}
}

// isEmpty is true for an interaction that is said to be completed before its video is there.
func (f *follower) isEmpty(state videoState) bool {
	if f.route.name() != "interactions" || state.failed != nil || len(state.videos) > 0 || len(state.texts) > 0 || f.empty >= emptyPolls {
		return false
	}
	f.empty++
	return true
}

func spread(around time.Duration) time.Duration {
	return time.Duration(float64(around) * (0.9 + 0.2*rand.Float64()))
}

func backingOff(from time.Duration, failed int) time.Duration {
	return spread(min(from<<min(failed+1, 10), max(longestPause, from)))
}

// poll asks once. What the answer says of the time to the next one goes before everything.
func (f *follower) poll(ctx context.Context) (state videoState, after *time.Duration, err error) {
	select {
	case f.v.polls <- struct{}{}:
		defer func() { <-f.v.polls }()
	case <-ctx.Done():
		return state, nil, context.Cause(ctx)
	}
	f.number = 0
	clear(f.stored)
	asked := f.route.poll(f.begun.Name)
	found, err := f.ask(ctx, asked)
	if err != nil {
		return state, nil, err
	}
	rules := rules{maxThrottle: f.v.cfg.MaxThrottle, secrets: f.route.secrets()}
	if found.status != http.StatusOK {
		p := rules.problemOf(found.body)
		return state, rules.wait(found, p), errors.New(rules.refusal(found, found.status, p).Error())
	}
	body, err := parseObject(found.body)
	if err != nil {
		return state, nil, errors.New("the answer to a poll is not a JSON object")
	}
	if state = f.route.read(body); state.strange {
		return state, nil, errors.New("the answer to a poll is no answer of the API " + f.route.name())
	}
	return state, rules.wait(found, problem{}), nil
}

// ask makes a call of this operation. Videos in the answer are stored while they come.
func (f *follower) ask(ctx context.Context, asked call) (answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(ctx, asked.method, f.route.endpoint+asked.path, bytes.NewReader(asked.body))
	if err != nil {
		return answer{}, errors.New("the operation's name does not fit into a URL")
	}
	token, err := f.route.authorize(ctx, request)
	if err != nil { // not the task's: it may pass, as every failure of a poll
		return answer{}, errors.New(err.Error())
	}
	f.v.describe(request)
	stalled := time.AfterFunc(pollPatience, func() { cancel(errStalled) })
	defer stalled.Stop()
	response, err := f.v.polling.Do(request)
	if err != nil {
		return answer{}, f.failure(ctx, err)
	}
	defer drain(response.Body)
	if response.StatusCode == http.StatusUnauthorized && token != "" {
		f.route.credentials.forget(token)
	}
	reader := &patientReader{response.Body, stalled}
	stalled.Stop()
	content, err := readJSON(reader, longString, maxAnswer, func(key string, from io.Reader) (string, error) { return f.keep(ctx, key, from) })
	if err != nil {
		return answer{status: response.StatusCode}, f.failure(ctx, err)
	}
	return answer{response.StatusCode, response.Header, content}, nil
}

var errStalled = errors.New("no answer within 30 s")

func (f *follower) failure(ctx context.Context, err error) error {
	var steer *worker.TaskError
	if errors.As(err, &steer) || errors.Is(err, worker.ErrLeaseLost) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.New(redact(withoutURL(err).Error(), f.route.secrets(), 200))
}

// patientReader stops a body that does not come: the clock runs only while it is waited for.
type patientReader struct {
	from  io.Reader
	clock *time.Timer
}

func (p *patientReader) Read(into []byte) (int, error) {
	p.clock.Reset(pollPatience)
	defer p.clock.Stop()
	return p.from.Read(into)
}

// tell shows the progress when it changes.
func (f *follower) tell(ctx context.Context, stage, words string) {
	if f.told == stage+words {
		return
	}
	f.told = stage + words
	told := object{{"stage", encode(stage)}, {"operation", encode(f.begun.Name)}}
	if words != "" {
		told = append(told, member{"polls_failed", encode(redact(words, f.route.secrets(), 200))})
	}
	_ = f.task.ReportProgress(ctx, told.raw())
}
