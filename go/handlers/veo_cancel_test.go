package handlers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

func TestCancellationReachesTheProvider(t *testing.T) {
	s, db := newStudio(t, pending), newMemory()
	handler, task := filming(t, s, db, `{"prompt":"P"}`, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { <-s.seen; cancel(worker.ErrCancelled) }()
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrCancelled) {
		t.Error(err)
	}
	if asked := s.requests(); asked[len(asked)-1] != "POST /v1beta/models/m/operations/op1:cancel {}" || !strings.Contains(string(db.operation), `"closed":"cancelled"`) {
		t.Errorf("%v %s", asked, db.operation)
	}
	s = newStudio(t, pending)
	handler, task = filming(t, s, newMemory(), `{"prompt":"P"}`, nil)
	ctx, cancel = context.WithCancelCause(context.Background())
	go func() { <-s.seen; cancel(worker.ErrShutdown) }()
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrShutdown) || strings.Contains(strings.Join(s.requests(), " "), "cancel") {
		t.Errorf("%v: another worker goes on with it", err)
	}
}

func TestACancelledSubmissionClosesItsConnection(t *testing.T) {
	seen, closed := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		_, _ = request.Body.Read(make([]byte, 1000))
		close(seen)
		<-request.Context().Done()
		close(closed)
	}))
	defer server.Close()
	handler, task := filming(t, &studio{Server: server}, newMemory(), `{"prompt":"P"}`, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { <-seen; cancel(worker.ErrCancelled) }()
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrCancelled) {
		t.Error(err)
	}
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("the provider does not know that nobody waits")
	}
}

func TestWhatIsAnsweredIsCancelledThere(t *testing.T) {
	begun, rest := make(chan struct{}, 9), make(chan struct{})
	s, db := newStudio(t, pending), newMemory()
	s.submit = func(out http.ResponseWriter) { // the cancellation comes in the middle of the answer
		_, _ = io.WriteString(out, `{"name":"models/m/`)
		_ = http.NewResponseController(out).Flush()
		<-rest
		_, _ = io.WriteString(out, `operations/op1"}`)
	}
	handler, task := filming(t, s, db, `{"prompt":"P"}`, nil)
	traced := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotFirstResponseByte: func() { begun <- struct{}{} }})
	ctx, cancel := context.WithCancelCause(traced)
	go func() {
		<-begun
		cancel(worker.ErrCancelled)
		time.Sleep(50 * time.Millisecond) // nothing may happen now
		close(rest)
	}()
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrCancelled) {
		t.Error(err)
	}
	asked := s.requests()
	if len(asked) != 2 || asked[1] != "POST /v1beta/models/m/operations/op1:cancel {}" || !strings.Contains(string(db.operation), `"closed":"cancelled"`) {
		t.Errorf("%v %s", asked, db.operation)
	}
}

// savingStops is a Backing under which the task is cancelled while its operation is saved.
type savingStops struct {
	*memory
	cancel context.CancelCauseFunc
}

func (s savingStops) SaveOperation(ctx context.Context, operation []byte) error {
	s.cancel(worker.ErrCancelled)
	return s.memory.SaveOperation(ctx, operation)
}

func TestCancelledWhileItIsSaved(t *testing.T) {
	s, db := newStudio(t, pending), newMemory()
	ctx, cancel := context.WithCancelCause(context.Background())
	handler, task := filming(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) { task.Backing = savingStops{db, cancel} })
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrCancelled) {
		t.Error(err)
	}
	if asked := s.requests(); len(asked) != 2 || !strings.Contains(asked[1], "op1:cancel") || !strings.Contains(string(db.operation), `"closed":"cancelled"`) {
		t.Errorf("%v %s", asked, db.operation)
	}
}

func TestACancelThatNobodyHeardIsPassedOn(t *testing.T) {
	s, db := newStudio(t, pending), newMemory()
	handler, task := filming(t, s, db, `{"prompt":"P"}`, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { <-s.seen; cancel(worker.ErrShutdown) }()
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrShutdown) {
		t.Fatal(err)
	}
	marked := strings.TrimSuffix(string(db.operation), "}") + `,"cancel_requested":true}`
	before := len(s.requests())
	handler, task = filming(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) {
		task.Paid = &worker.Paid{Operation: []byte(marked), Account: db.account}
	})
	if _, err := handler(context.Background(), task); !errors.Is(err, worker.ErrCancelled) {
		t.Error(err)
	}
	asked := s.requests()[before:]
	if len(asked) != 1 || !strings.Contains(asked[0], "op1:cancel") || !strings.Contains(string(db.operation), `"closed":"cancelled"`) || strings.Contains(string(db.operation), "cancel_requested") {
		t.Errorf("%v %s", asked, db.operation)
	}
}

func TestWhatTheProviderDoesNotCancelStaysOpen(t *testing.T) {
	s, db := newStudio(t, pending), newMemory()
	s.cancelled = http.StatusNotImplemented
	handler, task := filming(t, s, db, `{"prompt":"P"}`, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { <-s.seen; cancel(worker.ErrCancelled) }()
	if _, err := handler(ctx, task); !errors.Is(err, worker.ErrCancelled) {
		t.Error(err)
	}
	if asked := s.requests(); !strings.Contains(asked[len(asked)-1], "op1:cancel") || strings.Contains(string(db.operation), "closed") {
		t.Errorf("%v %s", asked, db.operation)
	}
}
