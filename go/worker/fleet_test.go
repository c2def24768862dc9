package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// gauge counts how many calls run, and the most there ever were.
type gauge struct{ running, most, calls atomic.Int64 }

func (g *gauge) enter() {
	g.calls.Add(1)
	running := g.running.Add(1)
	for most := g.most.Load(); running > most && !g.most.CompareAndSwap(most, running); most = g.most.Load() {
	}
}

func (g *gauge) leave() { g.running.Add(-1) }

func TestLimitIsExactAcrossWorkers(t *testing.T) {
	dsn := testdb.New(t)
	var g gauge
	handlers := map[string]Func{"t": func(context.Context, *Task) (any, error) {
		g.enter()
		defer g.leave()
		time.Sleep(10 * time.Millisecond)
		return nil, nil
	}}
	slots := func(cfg *Config) { cfg.Slots = 5 }
	r := start(t, dsn, slots, handlers)
	start(t, dsn, slots, handlers)
	start(t, dsn, slots, handlers)
	r.exec("SELECT taskgate.set_limit(7)")
	r.exec("INSERT INTO tasks (task_id, status, task_type, request) SELECT 't' || i, 'pending', 't', '{}' FROM generate_series(1, 300) i")
	testdb.Until(t, "all of them", func() bool { return value[int](r, "SELECT count(*) FROM tasks WHERE status = 'completed'") == 300 })
	if g.most.Load() != 7 || g.calls.Load() != 300 {
		t.Errorf("at most %d at once in %d calls, want 7 and 300", g.most.Load(), g.calls.Load())
	}
	if n := value[int](r, "SELECT max(attempts) FROM tasks"); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestLimitChangedLiveAndTwoConnections(t *testing.T) {
	dsn := testdb.New(t)
	var g gauge
	finish := make(chan struct{})
	r := start(t, dsn, func(cfg *Config) { cfg.Slots = 30 }, map[string]Func{"t": func(ctx context.Context, _ *Task) (any, error) {
		g.enter()
		defer g.leave()
		select {
		case <-finish:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}})
	r.exec("SELECT taskgate.set_limit(0)")
	r.exec("INSERT INTO tasks (task_id, status, task_type, request) SELECT 't' || i, 'pending', 't', '{}' FROM generate_series(1, 40) i")
	testdb.Until(t, "the worker to see the limit", func() bool { return strings.Contains(metricsOf(r), `claims_total{outcome="full"} 1`) })
	if g.calls.Load() != 0 {
		t.Fatal("a paused fleet runs")
	}
	r.exec("SELECT taskgate.set_limit(12)")
	testdb.Until(t, "12 running", func() bool { return g.running.Load() == 12 })
	if n := value[int](r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'taskgate worker%'"); n != 2 {
		t.Errorf("%d connections", n)
	}
	if n := value[int](r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"); n != 0 {
		t.Errorf("%d sessions idle in a transaction while calls run", n)
	}
	close(finish)
	testdb.Until(t, "all of them", func() bool { return value[int](r, "SELECT count(*) FROM tasks WHERE status = 'completed'") == 40 })
	if g.most.Load() != 12 {
		t.Errorf("at most %d at once", g.most.Load())
	}
}

func TestOverdueTasksAreRecoveredAlsoAtLimitZero(t *testing.T) {
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Lease = time.Second }, map[string]Func{"t": func(context.Context, *Task) (any, error) { return nil, nil }})
	r.exec("SELECT taskgate.set_limit(5)")
	r.exec("INSERT INTO tasks (task_id, status, task_type, request) VALUES ('lost', 'pending', 'gone', '{}')")
	r.exec("SELECT FROM taskgate.claim('a worker that died', 1, '{}', interval '0.1 seconds', '{gone}')")
	r.exec("SELECT taskgate.set_limit(0)")
	testdb.Until(t, "recovery", func() bool { return r.row("lost").Status == "pending" })
}

func TestCancelReachesTheCall(t *testing.T) {
	began, ended := make(chan string, 1), make(chan error, 1)
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Lease = time.Minute }, map[string]Func{"long": untilDone(began, ended)})
	r.submit("c", "long", "{}")
	receive(t, began)
	if answer := value[string](r, "SELECT taskgate.cancel('c')"); answer != "cancelling" {
		t.Fatal(answer)
	}
	if cause := receive(t, ended); cause != ErrCancelled {
		t.Errorf("stopped for %v", cause)
	}
	if have := r.ended("c"); have.Error != "cancelled" || have.Code != "cancelled" || have.Status != "failed" {
		t.Errorf("%+v", have)
	}
	testdb.Until(t, "task_cancelled", func() bool { return len(r.log.events("task_cancelled")) == 1 })
}

func TestDrainLetsCallsFinish(t *testing.T) {
	began, finish := make(chan string, 1), make(chan struct{})
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Grace, cfg.Lease = time.Minute, time.Second }, map[string]Func{"long": func(_ context.Context, task *Task) (any, error) {
		began <- task.ID
		<-finish
		return "done", nil
	}})
	r.submit("d", "long", "{}")
	receive(t, began)
	r.w.Drain()
	r.submit("later", "long", "{}")
	from := value[time.Time](r, "SELECT locked_until FROM tasks WHERE task_id = 'd'")
	testdb.Until(t, "renewals while draining", func() bool {
		return value[bool](r, "SELECT locked_until > $1::timestamptz + interval '2 seconds' FROM tasks WHERE task_id = 'd'", from)
	})
	if !value[bool](r, "SELECT draining FROM taskgate.workers WHERE worker_id = $1", r.w.ID()) {
		t.Error("the fleet does not know that it drains")
	}
	close(finish)
	if err := r.stopped(); err != nil {
		t.Fatal(err)
	}
	if have := r.row("d"); have.Result != `"done"` {
		t.Errorf("%+v", have)
	}
	if have := r.row("later"); have.Status != "pending" || have.Attempts != 0 {
		t.Errorf("claimed while draining: %+v", have)
	}
	if n := value[int](r, "SELECT count(*) FROM taskgate.workers WHERE worker_id = $1", r.w.ID()); n != 0 {
		t.Error("the worker did not say goodbye")
	}
}

func TestDrainGivesBackWhatDoesNotFinish(t *testing.T) {
	began, ended := make(chan string, 2), make(chan error, 1)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Grace = 50 * time.Millisecond }, map[string]Func{
		"long": untilDone(began, ended),
		"deaf": func(_ context.Context, task *Task) (any, error) { began <- task.ID; <-never; return nil, nil },
	})
	r.submit("long", "long", "{}")
	r.submit("deaf", "deaf", "{}")
	receive(t, began)
	receive(t, began)
	r.w.Drain()
	if err := r.stopped(); err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, ended); cause != ErrShutdown {
		t.Errorf("stopped for %v", cause)
	}
	for _, id := range []string{"long", "deaf"} {
		if have := r.row(id); have.Status != "pending" || have.Attempts != 0 || have.Releases != 1 {
			t.Errorf("%s: %+v", id, have)
		}
	}
	if n := r.log.events("worker_stopped"); len(n) != 1 || n[0]["released"] != 2.0 {
		t.Errorf("%v", n)
	}
}

func TestStopNowDoesNotWaitForTheGracePeriod(t *testing.T) {
	began, ended := make(chan string, 1), make(chan error, 1)
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Grace = time.Hour }, map[string]Func{"long": untilDone(began, ended)})
	r.submit("s", "long", "{}")
	receive(t, began)
	r.w.Drain()
	r.w.StopNow()
	if err := r.stopped(); err != nil {
		t.Fatal(err)
	}
	if have := r.row("s"); have.Status != "pending" || have.Attempts != 0 {
		t.Errorf("%+v", have)
	}
}

func TestSchemaMismatchEndsTheWorker(t *testing.T) {
	dsn := testdb.New(t)
	conn := testdb.Connect(t, dsn)
	if _, err := conn.Exec(context.Background(), "UPDATE taskgate.schema_version SET version = 99"); err != nil {
		t.Fatal(err)
	}
	r := start(t, dsn, nil, map[string]Func{"t": func(context.Context, *Task) (any, error) { return nil, nil }})
	var mismatch *SchemaMismatch
	if err := r.stopped(); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "upgrade taskgate") {
		t.Errorf("have %v", err)
	}
}

func TestEnqueueIsPartOfTheCallersTransaction(t *testing.T) {
	seen := make(chan *Task, 4)
	r := start(t, testdb.New(t), nil, map[string]Func{"t": func(_ context.Context, task *Task) (any, error) { seen <- task; return nil, nil }})
	ctx := context.Background()
	testdb.Until(t, "an idle worker", func() bool { return strings.Contains(metricsOf(r), `claims_total{outcome="empty"} 1`) })
	high := 9
	task := NewTask{ID: "mine", Type: "t", Request: rawRequest, Options: Options{Priority: &high, Timeout: 7 * time.Second, MaxAttempts: 2, Metadata: []byte(`{"k":1}`)}}
	tx, err := r.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Enqueue(ctx, tx, task); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		got, err := Queue{Tenant: "acme", Traceparent: "00-1-2-01"}.Enqueue(ctx, tx, task, NewTask{Type: "later", Request: map[string]int{"a": 1}, Options: Options{Delay: time.Hour}})
		if err != nil || len(got) != 2 || got[0].ID != "mine" || got[0].Exists || len(got[1].ID) != 36 {
			return fmt.Errorf("have %v, %w", got, err)
		}
		got, err = Enqueue(ctx, tx, task)
		if err != nil || !got[0].Exists {
			return fmt.Errorf("an id that is taken: %v, %w", got, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := receive(t, seen) // woken by the commit: the poll is far away
	if string(got.Request) != string(rawRequest) || got.Tenant != "acme" || got.Timeout != 7*time.Second || got.MaxAttempts != 2 || got.Traceparent != "00-1-2-01" || string(got.Metadata) != `{"k": 1}` {
		t.Errorf("%+v", got)
	}
	if n := value[int](r, "SELECT count(*) FROM tasks"); n != 2 {
		t.Errorf("%d tasks: the rolled back one is there", n)
	}
	if _, err := Enqueue(ctx, r.db, NewTask{Type: "Not A Type"}); err == nil {
		t.Error("a wrong type was taken")
	}
}

var rawRequest = json.RawMessage(`{"zeta":1,"alpha":{"b":[1,2],"a":null}}`)

func (r *rig) get(path string) (int, string) {
	r.t.Helper()
	testdb.Until(r.t, "the port", func() bool { return len(r.log.events("health_listening")) == 1 })
	response, err := http.Get(r.log.events("health_listening")[0]["url"].(string) + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestHealthAndMetrics(t *testing.T) {
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Port = 0 }, map[string]Func{"t": func(context.Context, *Task) (any, error) { return nil, nil }})
	r.submit("a", "t", "{}")
	r.ended("a")
	testdb.Until(t, "the count", func() bool { return r.w.metrics.ended.Load() == 1 })
	if status, body := r.get("/healthz"); status != 200 || !strings.Contains(body, `"status": "ok", "database": "ok"`) {
		t.Errorf("%d %s", status, body)
	}
	_, body := r.get("/metrics")
	for _, line := range []string{
		`taskgate_worker_slots 4`, `taskgate_worker_running 0`, `taskgate_worker_claimed_total 1`, `taskgate_worker_settled_total{outcome="completed"} 1`,
		`taskgate_worker_attempt_seconds_count 1`, `taskgate_worker_attempt_seconds_bucket{le="+Inf"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %s in\n%s", line, body)
		}
	}
	if status, _ := r.get("/else"); status != 404 {
		t.Errorf("%d", status)
	}
}

func metricsOf(r *rig) string {
	var out strings.Builder
	r.w.writeMetrics(&out)
	return out.String()
}
