package handlers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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
