package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// rig is a worker that runs in the test, a connection beside it, and its log.
type rig struct {
	t    *testing.T
	w    *Worker
	db   *pgx.Conn
	dsn  string
	log  *lines
	done chan error
}

type lines struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(line)
}

// events are the log's lines of one event.
func (l *lines) events(name string) (found []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.out.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["event"] == name {
			found = append(found, fields)
		}
	}
	return found
}

func settings(dsn string) Config {
	return Config{
		ClaimAhead:  aheadPerSlot,
		DatabaseURL: dsn, Schema: "public", Slots: 4, Lease: 3 * time.Second, Timeout: 30 * time.Second, Grace: 5 * time.Second,
		Poll: 40 * time.Second, Host: "127.0.0.1", Port: -1, MaxResultBytes: 1 << 20, MaxThrottle: time.Hour,
	}
}

// start runs a worker; change may alter its settings and register handlers.
func start(t *testing.T, dsn string, change func(*Config), handlers map[string]Func) *rig {
	t.Helper()
	cfg := settings(dsn)
	if change != nil {
		change(&cfg)
	}
	r := &rig{t: t, dsn: dsn, log: &lines{}, done: make(chan error, 1)}
	r.w = newWorker(cfg, NewLogger(r.log, "json", "info"))
	for name, handler := range handlers {
		r.w.Handle(name, handler)
	}
	r.db = testdb.Connect(t, dsn)
	go func() { r.done <- r.w.Run(context.Background()) }()
	t.Cleanup(func() {
		r.w.StopNow()
		select {
		case <-r.done:
		case <-time.After(time.Minute):
			t.Error("the worker did not stop")
		}
		if t.Failed() {
			t.Log(r.log.out.String())
		}
	})
	return r
}

// stop waits for the end of a worker that was told to drain.
func (r *rig) stopped() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(time.Minute):
		r.t.Fatal("the worker did not stop")
		return nil
	}
}

func (r *rig) exec(statement string, arguments ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(context.Background(), statement, arguments...); err != nil {
		r.t.Fatalf("%s: %v", statement, err)
	}
}

func value[T any](r *rig, query string, arguments ...any) T {
	r.t.Helper()
	var found T
	if err := r.db.QueryRow(context.Background(), query, arguments...).Scan(&found); err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return found
}

// submit inserts a task as a producer that knows only SQL does.
func (r *rig) submit(id, taskType, request string) {
	r.t.Helper()
	r.exec("INSERT INTO tasks (task_id, status, task_type, request) VALUES ($1, 'pending', $2, $3::text::jsonb)", id, taskType, request)
}

type row struct {
	Status, Result, Error, Code string
	Attempts, Releases          int
}

func (r *rig) row(id string) (found row) {
	r.t.Helper()
	err := r.db.QueryRow(context.Background(), `SELECT status, coalesce(result::text, ''), coalesce(error, ''), coalesce(error_code, ''), attempts, releases
		FROM tasks WHERE task_id = $1`, id).Scan(&found.Status, &found.Result, &found.Error, &found.Code, &found.Attempts, &found.Releases)
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

// ended waits until the task is final.
func (r *rig) ended(id string) row {
	r.t.Helper()
	testdb.Until(r.t, "the end of "+id, func() bool {
		status := r.row(id).Status
		return status == "completed" || status == "failed"
	})
	return r.row(id)
}

// receive waits for a value of a handler's.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("unreachable")
	}
}

// standing is a worker of one slot that does not run: the test drives its parts itself. It connects through another address.
func standing(t *testing.T, dsn, through string) *rig {
	t.Helper()
	cfg := settings(through)
	cfg.Slots = 1
	r := &rig{t: t, dsn: dsn, log: &lines{}, db: testdb.Connect(t, dsn)}
	r.w = newWorker(cfg, NewLogger(r.log, "json", "info"))
	r.w.base = t.Context()
	r.w.Handle("t", func(context.Context, *Task) (any, error) { return nil, nil })
	if err := r.w.prepare(); err != nil {
		t.Fatal(err)
	}
	return r
}
