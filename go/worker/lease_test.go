package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/taskgate/taskgate/go/internal/cutproxy"
	"github.com/taskgate/taskgate/go/internal/testdb"
)

// untilDone is a handler that says why its context ended.
func untilDone(began chan<- string, ended chan<- error) Func {
	return func(ctx context.Context, task *Task) (any, error) {
		began <- task.ID
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, ctx.Err()
	}
}

// takenAway is what recovery does to a task whose worker was thought lost.
const takenAway = `UPDATE tasks SET status = 'pending', task_type = 'elsewhere', claim_token = nextval('taskgate.claim_token_seq'),
	worker_id = NULL, locked_until = NULL WHERE task_id = $1`

func TestLeaseIsRenewedWhileTheCallRuns(t *testing.T) {
	release := make(chan struct{})
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Lease = time.Second }, map[string]Func{"long": func(context.Context, *Task) (any, error) {
		<-release
		return "done", nil
	}})
	r.submit("l", "long", "{}")
	testdb.Until(t, "the claim", func() bool { return r.row("l").Status == "running" })
	first := value[time.Time](r, "SELECT locked_until FROM tasks WHERE task_id = 'l'")
	testdb.Until(t, "two leases", func() bool {
		return value[bool](r, "SELECT locked_until > $1::timestamptz + interval '2 seconds' FROM tasks WHERE task_id = 'l'", first)
	})
	close(release)
	if have := r.ended("l"); have.Result != `"done"` || have.Attempts != 1 {
		t.Errorf("%+v", have)
	}
}

func TestRenewalAndResultsDoNotWaitBehindAClaim(t *testing.T) {
	dsn := testdb.New(t)
	finish := make(chan struct{})
	r := start(t, dsn, func(cfg *Config) { cfg.Lease = time.Second }, map[string]Func{"long": func(_ context.Context, task *Task) (any, error) {
		<-finish
		return nil, nil
	}})
	r.submit("l", "long", "{}")
	testdb.Until(t, "the claim", func() bool { return r.row("l").Status == "running" })
	blocker := testdb.Connect(t, dsn)
	tx, err := blocker.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "SELECT pg_advisory_xact_lock(taskgate.lock_key())"); err != nil {
		t.Fatal(err)
	}
	r.submit("other", "long", "{}") // wakes the claimer, which now stands in line
	from := value[time.Time](r, "SELECT locked_until FROM tasks WHERE task_id = 'l'")
	testdb.Until(t, "renewals under the lock", func() bool {
		return value[bool](r, "SELECT locked_until > $1::timestamptz + interval '2 seconds' FROM tasks WHERE task_id = 'l'", from)
	})
	close(finish)
	if have := r.ended("l"); have.Status != "completed" {
		t.Errorf("%+v", have)
	}
	if busy := r.row("other"); busy.Status != "pending" {
		t.Errorf("claimed in spite of the lock: %+v", busy)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.ended("other")
}

func TestStaleTokenStopsTheCall(t *testing.T) {
	began, ended := make(chan string, 2), make(chan error, 2)
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Lease = time.Second }, map[string]Func{"long": untilDone(began, ended)})
	r.submit("l", "long", "{}")
	receive(t, began)
	r.exec(takenAway, "l")
	if cause := receive(t, ended); !errors.Is(cause, ErrLeaseLost) {
		t.Errorf("stopped for %v", cause)
	}
	testdb.Until(t, "lease_lost", func() bool { return len(r.log.events("lease_lost")) == 1 })
	if reason := r.log.events("lease_lost")[0]["reason"]; reason != "stale" {
		t.Errorf("reason %v", reason)
	}
	if have := r.row("l"); have.Status != "pending" {
		t.Errorf("%+v", have)
	}
}

func TestLateResultIsRefused(t *testing.T) {
	began, finish := make(chan int64, 2), make(chan struct{})
	r := start(t, testdb.New(t), nil, map[string]Func{"long": func(_ context.Context, task *Task) (any, error) {
		began <- task.Token
		<-finish
		return "late", nil
	}})
	r.submit("l", "long", "{}")
	receive(t, began)
	r.exec(takenAway, "l")
	close(finish)
	testdb.Until(t, "result_refused", func() bool { return len(r.log.events("result_refused"))+len(r.log.events("lease_lost")) > 0 })
	if have := r.row("l"); have.Status != "pending" || have.Result != "" {
		t.Errorf("%+v", have)
	}
	testdb.Until(t, "a free slot", func() bool { return r.w.book.count() == 0 })
}

func TestCutNetworkStopsTheCallBeforeTheLeaseEnds(t *testing.T) {
	dsn := testdb.New(t)
	proxy, through := cutproxy.New(t, dsn)
	began, ended := make(chan string, 2), make(chan error, 2)
	direct := testdb.Connect(t, dsn)
	r := start(t, through, func(cfg *Config) { cfg.Lease = 3 * time.Second }, map[string]Func{"long": untilDone(began, ended)})
	r.db = direct
	r.submit("l", "long", "{}")
	receive(t, began)
	proxy.Cut()
	if cause := receive(t, ended); !errors.Is(cause, ErrLeaseLost) {
		t.Fatalf("stopped for %v", cause)
	}
	if !value[bool](r, "SELECT locked_until > clock_timestamp() FROM tasks WHERE task_id = 'l'") {
		t.Error("the call outlived its lease")
	}
	if lost := r.log.events("lease_lost"); len(lost) != 1 || lost[0]["reason"] != "not_renewed" {
		t.Errorf("%v", lost)
	}
	proxy.Heal()
	receive(t, began) // given back, or recovered: it runs again
	r.exec("SELECT taskgate.cancel('l')")
	r.ended("l")
	testdb.Until(t, "database_back", func() bool { return len(r.log.events("database_back")) > 0 })
}

func TestLostConnectionsAreSurvivedAndSaidOnce(t *testing.T) {
	dsn := testdb.New(t)
	proxy, through := cutproxy.New(t, dsn)
	began, finish := make(chan string, 40), make(chan struct{})
	direct := testdb.Connect(t, dsn)
	r := start(t, through, func(cfg *Config) { cfg.Lease = 20 * time.Second }, map[string]Func{"long": func(_ context.Context, task *Task) (any, error) {
		began <- task.ID
		<-finish
		return nil, nil
	}})
	r.db = direct
	for _, id := range []string{"a", "b", "c"} {
		r.submit(id, "long", "{}")
		receive(t, began)
	}
	proxy.Cut()
	proxy.Drop()
	testdb.Until(t, "database_lost", func() bool { return len(r.log.events("database_lost")) > 0 })
	close(finish) // the results have nowhere to go yet
	testdb.Until(t, "outcomes that wait", func() bool { return r.w.link.buffer.count() > 0 })
	proxy.Heal()
	for _, id := range []string{"a", "b", "c"} {
		if have := r.ended(id); have.Status != "completed" || have.Attempts != 1 {
			t.Errorf("%s: %+v", id, have)
		}
	}
	testdb.Until(t, "database_back", func() bool { return len(r.log.events("database_back")) == 1 })
	first := 0
	for _, each := range r.log.events("database_lost") {
		if each["seconds"] == 0.0 {
			first++
		}
	}
	if first != 1 {
		t.Errorf("lost %d times", first)
	}
	r.submit("d", "long", "{}")
	r.ended("d")
}

func TestLostClaimReplyIsHandedOutAgain(t *testing.T) {
	began := make(chan int64, 4)
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Slots = 2 }, map[string]Func{"t": func(_ context.Context, task *Task) (any, error) {
		began <- task.Token
		return nil, nil
	}})
	testdb.Until(t, "the start", func() bool { return len(r.log.events("worker_started")) == 1 })
	// the same worker's claim, whose answer never reaches it; in the insert's transaction, so that it is the first
	var token int64
	err := pgx.BeginFunc(t.Context(), r.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "INSERT INTO tasks (task_id, status, task_type, request) VALUES ('x', 'pending', 't', '{}')"); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), "SELECT token FROM taskgate.claim($1, 1, '{}', interval '1 minute', '{t}')", r.w.ID()).Scan(&token)
	})
	if err != nil {
		t.Fatal(err)
	}
	r.exec("SELECT pg_notify('taskgate_ready', '')")
	if got := receive(t, began); got != token {
		t.Errorf("token %d, want %d", got, token)
	}
	if have := r.ended("x"); have.Status != "completed" || have.Attempts != 1 {
		t.Errorf("%+v", have)
	}
}

func TestRowThatSomebodyHoldsDoesNotKeepUpOthers(t *testing.T) {
	dsn := testdb.New(t)
	began, finish := make(chan string, 2), make(chan struct{})
	r := start(t, dsn, func(cfg *Config) { cfg.Lease = 2 * time.Second }, map[string]Func{"long": func(_ context.Context, task *Task) (any, error) {
		began <- task.ID
		<-finish
		return nil, nil
	}})
	r.submit("held", "long", "{}")
	r.submit("other", "long", "{}")
	receive(t, began)
	receive(t, began)
	holder := testdb.Connect(t, dsn)
	tx, err := holder.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "SELECT FROM tasks WHERE task_id = 'held' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	from := value[time.Time](r, "SELECT locked_until FROM tasks WHERE task_id = 'other'")
	testdb.Until(t, "the other's renewal", func() bool {
		return value[bool](r, "SELECT locked_until > $1::timestamptz + interval '1 second' FROM tasks WHERE task_id = 'other'", from)
	})
	close(finish)
	if have := r.ended("other"); have.Status != "completed" || have.Attempts != 1 {
		t.Errorf("%+v", have)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	if have := r.ended("held"); have.Status != "completed" {
		t.Errorf("%+v", have)
	}
}

func TestOutcomeWhoseRowStaysHeldIsGivenUp(t *testing.T) {
	dsn := testdb.New(t)
	began, finish := make(chan string, 4), make(chan struct{})
	r := start(t, dsn, func(cfg *Config) { cfg.Lease = time.Second }, map[string]Func{"long": func(_ context.Context, task *Task) (any, error) {
		began <- task.ID
		<-finish
		return task.Attempt, nil
	}})
	r.submit("held", "long", "{}")
	receive(t, began)
	tx, err := testdb.Connect(t, dsn).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "SELECT FROM tasks WHERE task_id = 'held' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	close(finish)
	testdb.Until(t, "the slot", func() bool { return len(r.log.events("settle_failed")) == 1 && r.w.book.count() == 0 })
	r.submit("other", "long", "{}")
	r.ended("other")
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	if have := r.ended("held"); have.Status != "completed" || have.Attempts != 2 {
		t.Errorf("%+v", have)
	}
}

func TestLargeRequestsArriveWhole(t *testing.T) {
	sizes := make(chan int, 4)
	r := start(t, testdb.New(t), nil, map[string]Func{"t": func(_ context.Context, task *Task) (any, error) {
		sizes <- len(task.Request)
		return task.Metadata, nil
	}})
	r.exec(`INSERT INTO tasks (task_id, status, task_type, request, metadata) SELECT 'big' || i, 'pending', 't', jsonb_build_object('x', repeat('y', 200000)), '{"k": 1}' FROM generate_series(1, 3) i`)
	for range 3 {
		if size := receive(t, sizes); size < 200_000 {
			t.Errorf("%d bytes", size)
		}
	}
	if have := r.ended("big3"); have.Result != `{"k": 1}` {
		t.Errorf("%+v", have)
	}
}
