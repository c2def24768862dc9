package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// cancels are the requests to cancel an operation.
func (s *studio) cancels() (count int) {
	for _, each := range s.requests() {
		if strings.Contains(each, "op1:cancel") {
			count++
		}
	}
	return count
}

// cancelledFollowing cancels an attempt that follows its operation.
func cancelledFollowing(t *testing.T, s *studio, db *memory) error {
	t.Helper()
	handler, task := filming(t, s, db, `{"prompt":"P"}`, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { <-s.seen; cancel(worker.ErrCancelled) }()
	_, err := handler(ctx, task)
	return err
}

// unwanted lets another worker have a task that was cancelled while nobody followed it.
func unwanted(t *testing.T, s *studio, db *memory) error {
	t.Helper()
	marked := strings.TrimSuffix(string(db.operation), "}") + `,"cancel_requested":true}`
	_, err := film(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) {
		task.Paid = &worker.Paid{Operation: []byte(marked), Account: db.account}
	})
	return err
}

func TestARefusalThatPassesIsTriedAgain(t *testing.T) {
	for _, status := range []int{401, 403, 408, 425, 429, 500, 502, 503, 504} {
		if !mayPass(status) {
			t.Errorf("%d is taken as final", status)
		}
	}
	s, db := newStudio(t, pending), newMemory()
	s.refusals = []int{401, 429, 503}
	if err := cancelledFollowing(t, s, db); err != worker.ErrCancelled {
		t.Error(err)
	}
	if s.cancels() != 4 || !strings.Contains(string(db.operation), `"closed":"cancelled"`) {
		t.Errorf("%v %s", s.requests(), db.operation)
	}
}

func TestARefusalForGoodIsNotTriedAgain(t *testing.T) {
	for _, status := range []int{400, 404, 501} {
		s, db := newStudio(t, pending), newMemory()
		s.cancelled = status
		if err := cancelledFollowing(t, s, db); err != worker.ErrCancelled || s.cancels() != 1 || strings.Contains(string(db.operation), "closed") {
			t.Errorf("%d: %v %v %s", status, err, s.requests(), db.operation)
		}
		if err := unwanted(t, s, db); err != worker.ErrCancelled || s.cancels() != 2 {
			t.Errorf("%d: %v %v", status, err, s.requests())
		}
	}
}

func TestWhatStaysRefusedIsLeftToTheNextWorker(t *testing.T) {
	t.Parallel() // it takes as long as the provider is asked
	s, db := newStudio(t, pending), newMemory()
	s.cancelled = http.StatusServiceUnavailable
	steered(t, cancelledFollowing(t, s, db), "snoozed", "released", "answered 503")
	if s.cancels() < 3 || strings.Contains(string(db.operation), "closed") {
		t.Errorf("%v %s", s.requests(), db.operation)
	}
	steered(t, unwanted(t, s, db), "snoozed", "released", "answered 503")
	s.mu.Lock()
	s.cancelled = 0
	s.mu.Unlock()
	if err := unwanted(t, s, db); err != worker.ErrCancelled || !strings.Contains(string(db.operation), `"closed":"cancelled"`) {
		t.Errorf("%v %s", err, db.operation)
	}
	if len(s.submissions()) != 1 {
		t.Errorf("submitted %v", s.submissions())
	}
}

// slowDatabase is a Backing that answers no more once the attempt is stopped.
type slowDatabase struct {
	*memory
	asked func()
}

func (s slowDatabase) Keep(ctx context.Context, _, _ []byte) error {
	s.asked()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s slowDatabase) Upstream(ctx context.Context, _ string) (worker.Upstream, bool, error) {
	s.asked()
	<-ctx.Done()
	return worker.Upstream{}, false, context.Cause(ctx)
}

func TestCancelledBeforeItIsFollowed(t *testing.T) {
	s, db := newStudio(t, pending), newMemory()
	if err := cancelledFollowing(t, s, db); err != worker.ErrCancelled {
		t.Fatal(err)
	}
	open := strings.Replace(string(db.operation), `,"closed":"cancelled"`, "", 1)
	elsewhere := strings.Replace(string(db.account), `"upstream":""`, `"upstream":"u"`, 1)
	foreign := strings.Replace(string(db.account), `"key":"`, `"key":"another`, 1)
	asked := len(s.requests())
	for name, c := range map[string]struct{ account, checkpoint string }{
		"while upstreams are read":           {elsewhere, ""},
		"while the account is noted as here": {string(db.account), `{"account_missing_since":1}`},
		"while the account is noted as gone": {foreign, ""},
	} {
		for _, cause := range []error{worker.ErrCancelled, worker.ErrShutdown} {
			ctx, cancel := context.WithCancelCause(context.Background())
			handler, task := filming(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) {
				task.Paid = &worker.Paid{Operation: []byte(open), Account: []byte(c.account)}
				task.Checkpoint = json.RawMessage(c.checkpoint)
				task.Backing = slowDatabase{db, func() { cancel(cause) }}
			})
			_, err := handler(ctx, task)
			if cause == worker.ErrShutdown {
				if !errors.Is(err, cause) {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			steered(t, err, "snoozed", "released", "before it was followed")
		}
	}
	if now := len(s.requests()); now != asked {
		t.Errorf("asked %v", s.requests()[asked:])
	}
}

// ended is a Backing under which the task was cancelled, and has ended, while the worker was frozen in its send.
type ended struct{ *memory }

func (e ended) SaveOperation(ctx context.Context, operation []byte) error {
	if err := e.memory.SaveOperation(ctx, operation); err != nil {
		return err
	}
	return worker.ErrEndedCancelled
}

func TestAHandleThatComesAfterTheEndIsCancelled(t *testing.T) {
	s, db := newStudio(t, pending), newMemory()
	_, err := film(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) { task.Backing, task.Timeout = ended{db}, time.Minute })
	if !errors.Is(err, worker.ErrLeaseLost) || s.cancels() != 1 || !strings.Contains(string(db.operation), `"closed":"cancelled"`) {
		t.Errorf("%v %v %s", err, s.requests(), db.operation)
	}
}
