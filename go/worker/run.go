package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// begin starts one claimed task. sent is when its claim was sent: from then its lease counts.
func (w *Worker) begin(task *Task, sent time.Duration) {
	handler := w.handlers[task.Type]
	if task.Timeout <= 0 && handler != nil {
		task.Timeout = handler.timeout
	}
	if task.Timeout <= 0 {
		task.Timeout = w.cfg.Timeout
	}
	ctx, cancel := context.WithCancelCause(w.base)
	a := &attempt{task: task, handler: handler, ctx: ctx, begun: time.Now(), cancel: cancel, endsAt: sent + w.cfg.Lease}
	if !w.book.add(a) {
		cancel(nil) // handed out again while it runs here: nothing to do
		return
	}
	if w.isDraining() { // the claim was under way when the signal came
		w.settle(a, nil, ErrShutdown)
		cancel(nil)
		return
	}
	task.Backing = lent{w, task}
	w.log.Debug("task_claimed", "task_id", task.ID, "task_type", task.Type, "token", task.Token, "attempt", task.Attempt, "waited_seconds", round(task.waited))
	w.metrics.claimed.Add(1)
	if w.book.enter(a) {
		go w.occupy(a)
	}
}

// occupy runs one attempt in a slot, and leaves the slot to the next.
func (w *Worker) occupy(a *attempt) {
	defer func() { // a handler may end its goroutine
		if next := w.book.leave(a); next != nil {
			go w.occupy(next)
		}
	}()
	w.attempt(a)
}

func (w *Worker) attempt(a *attempt) {
	defer a.cancel(nil)
	ended := false
	defer func() { // whatever the outcome is, the attempt must not run for ever because of it
		if wrong := recover(); wrong != nil { // an error or info with methods that panic
			w.link.settle(settlement{attempt: a, verb: verbFail, retry: true, code: "handler_error", took: time.Since(a.begun),
				text: "the handler returned an error that cannot be described"})
		} else if !ended {
			w.settle(a, nil, Retry("the handler ended its goroutine without returning"))
		}
	}()
	var result []byte
	var err error
	cause := w.book.causeOf(a) // while it waited for its slot
	switch {
	case cause == ErrTimeout: // not its own: it has not begun
		err = errNoSlot
	case cause == ErrCancelled && a.task.Paid != nil && a.handler != nil: // for the handler to cancel at the provider
		result, err = w.limited(a)
	case cause != nil:
		err = stopError{cause}
	case now() >= w.book.leaseOf(a)-w.margin: // the machine slept, or was very busy
		w.log.Warn("lease_lost", "task_id", a.task.ID, "token", a.task.Token, "reason", "not_renewed")
		err = ErrLeaseLost
	case a.handler == nil:
		err = Snooze(time.Minute, "this worker has no handler for %q", a.task.Type)
	default:
		result, err = w.limited(a)
	}
	ended = true
	w.settle(a, result, err)
}

// limited runs the handler within its time.
func (w *Worker) limited(a *attempt) ([]byte, error) {
	limited, release := context.WithTimeoutCause(a.ctx, a.task.Timeout, ErrTimeout)
	defer release()
	result, err := w.call(limited, a.task, a.handler.run)
	// work that was paid for is kept if the database still takes it; a time limit and a cancellation are promises
	if cause := context.Cause(limited); cause != nil && (err != nil || cause == ErrTimeout || cause == ErrCancelled) {
		err = fmt.Errorf("%w: %w", stopError{cause}, err)
	}
	return result, err
}

// stopError says that the handler ended because its context did.
type stopError struct{ cause error }

func (e stopError) Error() string { return e.cause.Error() }
func (e stopError) Unwrap() error { return e.cause }

// call runs the handler; a panic of it is an error of the attempt.
func (w *Worker) call(ctx context.Context, task *Task, run Func) (result []byte, err error) {
	defer func() {
		if wrong := recover(); wrong != nil {
			panicked := Retry("panic: %v", wrong)
			panicked.trace = plain(string(debug.Stack()))
			err = panicked.WithInfo(map[string]string{"traceback": panicked.trace})
		}
	}()
	value, err := run(ctx, task)
	if err != nil {
		return nil, err
	}
	text, err := marshal(value)
	if err != nil {
		return nil, Permanent("the handler's result is not JSON: %v", err).WithCode("result_not_json")
	}
	if len(text) > w.cfg.MaxResultBytes {
		return nil, Permanent("the result has %d bytes, more than the %d allowed: make it smaller, or raise TASKGATE_MAX_RESULT_BYTES",
			len(text), w.cfg.MaxResultBytes).WithCode("result_too_large")
	}
	return text, nil
}

// settle decides what becomes of an attempt whose handler has returned, and sends it on its way.
func (w *Worker) settle(a *attempt, result []byte, err error) {
	w.book.mu.Lock()
	given := a.settles // at the end of a drain the worker does not wait for the handler
	a.settles, a.succeeded = true, err == nil
	cause, lost := a.cause, a.lost
	w.book.mu.Unlock()
	if given {
		return
	}
	if lost && cause == ErrTimeout { // let go long ago; somebody else may have it
		w.book.remove(a.task.Token)
		return
	}
	s := settlement{attempt: a, took: time.Since(a.begun)}
	var steer *TaskError
	switch {
	case err == nil:
		s.verb, s.result = verbComplete, result
	case errors.Is(err, ErrCancelled) && errors.As(err, &steer) && (steer.kind == snoozeKind || steer.kind == throttledKind):
		s.steer(steer) // its operation at the provider could not be cancelled: the next worker tries
	case errors.Is(err, ErrCancelled):
		s.verb, s.code, s.text = verbFail, "cancelled", "cancelled"
	case errors.Is(err, ErrLeaseLost):
		s.giveBack("lease_lost", "the lease could not be renewed in time")
		s.quiet = true // already in the log
		if errors.Is(cause, errStale) {
			w.book.remove(a.task.Token)
			return
		}
	case errors.Is(err, errNoSlot):
		s.giveBack("released", "no slot came free for it")
		s.waited = true
	case errors.Is(err, ErrShutdown):
		s.giveBack("released", "the worker stopped")
	case isStop(err, ErrTimeout):
		s.verb, s.retry, s.code = verbFail, true, "timeout"
		s.text = fmt.Sprintf("the attempt took longer than %g s", a.task.Timeout.Seconds())
	case errors.As(err, &steer):
		s.steer(steer)
	default:
		s.verb, s.retry, s.code, s.text = verbFail, true, "handler_error", plain(fmt.Sprintf("%s", err))
	}
	w.link.settle(s)
}

func isStop(err, cause error) bool {
	var stop stopError
	return errors.As(err, &stop) && errors.Is(stop.cause, cause)
}
