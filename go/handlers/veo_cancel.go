package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	cancelTimeout = 4 * time.Second // for the provider to cancel an operation: it is asked again, with growing pauses
	cancelPause   = 250 * time.Millisecond
	leftPause     = 5 * time.Second // what was not cancelled in that time is tried again so much later, by whoever has it then
)

// cancel ends the operation at the provider. Its error is ErrCancelled once that is done, and also when the provider does
// not want to: then it stays open, and who retries the task follows it, and does not pay again. Where it could not be done
// now the error gives the task back, so that the next worker tries.
func (f *follower) cancel(ctx context.Context) error {
	short, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	words := fmt.Sprintf("no answer in %g s", cancelTimeout.Seconds())
	for wait := cancelPause; ; wait *= 2 {
		found, err := f.ask(short, f.route.cancel(f.begun.Name))
		switch {
		case found.status >= 200 && found.status < 300:
			f.begun.Closed, f.begun.Unwanted = "cancelled", false
			saving, done := linger(ctx, lastWords, nil)
			defer done()
			_ = f.task.SaveOperation(saving, f.begun)
			return worker.ErrCancelled
		case found.status != 0 && !mayPass(found.status):
			return worker.ErrCancelled
		case found.status != 0:
			words = fmt.Sprintf("the provider answered %d", found.status)
		case short.Err() == nil:
			words = err.Error()
		}
		if pause(short, wait) != nil {
			return left("the operation %s could not be cancelled at the provider: %s", f.begun.Name, words)
		}
	}
}

// mayPass is true for a refusal after which the provider may yet cancel an operation.
func mayPass(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 && status != http.StatusNotImplemented
}

// left gives a cancelled task back: whoever has it next finds its operation unwanted, and cancels it.
func left(format string, args ...any) *worker.TaskError {
	return worker.Snooze(leftPause, format, args...).WithCode("released")
}

// notTaken is what becomes of a task that was stopped before its operation was followed.
func notTaken(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), worker.ErrCancelled) {
		return left("cancelled before it was followed")
	}
	return err
}
