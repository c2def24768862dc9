package worker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// tasks of type t that end at once, or wait until the test lets them go
type mixed struct {
	gauge
	begun  chan string
	finish chan struct{}
}

func (m *mixed) handle(ctx context.Context, task *Task) (any, error) {
	m.enter()
	defer m.leave()
	if string(task.Request) == `{"long": true}` {
		m.begun <- task.ID
		return until(m.finish)(ctx, task)
	}
	return nil, nil
}

func (r *rig) submitAll(prefix string, count int, request string) {
	r.t.Helper()
	r.exec(`INSERT INTO tasks (task_id, status, task_type, request) SELECT $1 || i, 'pending', 't', $3::text::jsonb FROM generate_series(1, $2::integer) i`,
		prefix, count, request)
}

func (r *rig) completed(prefix string, count int) {
	r.t.Helper()
	testdb.Until(r.t, prefix, func() bool {
		return value[int](r, "SELECT count(*) FROM tasks WHERE status = 'completed' AND task_id LIKE $1 || '%'", prefix) == count
	})
}

func one(cfg *Config) { cfg.Slots = 1 }

func TestMoreAreHeldThanThereAreSlotsButNoMoreRun(t *testing.T) {
	for _, slots := range []int{1, 3} {
		var g gauge
		var most atomic.Int64
		var r *rig
		ready := make(chan struct{})
		r = start(t, testdb.New(t), func(cfg *Config) { cfg.Slots = slots }, map[string]Func{"t": func(context.Context, *Task) (any, error) {
			<-ready
			g.enter()
			defer g.leave()
			if held := int64(r.w.book.count()); held > most.Load() {
				most.Store(held)
			}
			return nil, nil
		}})
		close(ready)
		r.submitAll("t", 600, "{}")
		r.completed("t", 600)
		if int(g.most.Load()) > slots || g.calls.Load() != 600 {
			t.Errorf("%d at once for %d slots, %d calls", g.most.Load(), slots, g.calls.Load())
		}
		if int(most.Load()) <= slots {
			t.Errorf("never more than %d held: nothing was claimed ahead", most.Load())
		}
		testdb.Until(t, "an idle worker", r.idle)
	}
}

func TestALongTaskLetsThoseClaimedWithItGo(t *testing.T) {
	dsn := testdb.New(t)
	m := &mixed{begun: make(chan string, 9), finish: make(chan struct{})}
	first := start(t, dsn, one, map[string]Func{"t": m.handle})
	first.submitAll("before", 60, "{}")
	first.completed("before", 60)
	testdb.Until(t, "a row of short ones", func() bool { return first.w.book.inARow() >= aheadPerSlot })
	// one transaction, so one claim
	first.exec(`INSERT INTO tasks (task_id, status, task_type, request)
		SELECT id, 'pending', 't', CASE id WHEN 'long' THEN '{"long": true}' ELSE '{}' END::jsonb FROM unnest(ARRAY['long', 's1', 's2', 's3', 's4', 's5']) AS id`)
	if id := receive(t, m.begun); id != "long" {
		t.Fatal(id)
	}
	testdb.Until(t, "what waits to be given back", func() bool {
		return value[int](first, "SELECT count(*) FROM tasks WHERE releases = 1") == 5 && first.w.book.count() == 1
	})
	for _, id := range []string{"s1", "s2", "s3", "s4", "s5"} {
		first.wasGivenBack(id)
	}
	if n := first.w.book.inARow(); n != 0 {
		t.Errorf("a row of %d", n)
	}
	start(t, dsn, one, map[string]Func{"t": m.handle})
	first.completed("s", 5) // while the long one runs
	if have := first.row("long"); have.Status != "running" || have.Attempts != 1 {
		t.Errorf("%+v", have)
	}
	close(m.finish)
	first.completed("long", 1)
	if n := value[int](first, "SELECT max(attempts) FROM tasks"); n != 1 {
		t.Errorf("%d attempts", n)
	}
	if n := value[int](first, "SELECT max(releases) FROM tasks"); n != 1 {
		t.Errorf("given back %d times", n)
	}
	testdb.Until(t, "an idle worker", first.idle)
}

// With nobody else to take them they wait for the worker that gave them back.
func TestALoneWorkerGivesATaskBackOnceForEachLongOne(t *testing.T) {
	m := &mixed{begun: make(chan string, 9), finish: make(chan struct{})}
	r := start(t, testdb.New(t), one, map[string]Func{"t": m.handle})
	r.submitAll("before", 60, "{}")
	r.completed("before", 60)
	r.exec(`INSERT INTO tasks (task_id, status, task_type, request)
		SELECT 's' || i, 'pending', 't', CASE WHEN i IN (1, 4, 6) THEN '{"long": true}' ELSE '{}' END::jsonb FROM generate_series(1, 9) i`)
	for n := range 3 {
		receive(t, m.begun)
		testdb.Until(t, "what waits to be given back", func() bool {
			return (n > 0 || value[int](r, "SELECT count(*) FROM tasks WHERE releases = 1") == 8) && r.w.book.count() == 1
		})
		m.finish <- struct{}{}
	}
	r.completed("s", 9)
	if n := value[int](r, "SELECT max(attempts) FROM tasks"); n != 1 {
		t.Errorf("%d attempts", n)
	}
	if n := value[int](r, "SELECT max(releases) FROM tasks"); n > 3 {
		t.Errorf("one was given back %d times", n)
	}
	testdb.Until(t, "an idle worker", r.idle)
}

const dying = "TASKGATE_TEST_DYING_WORKER"

// TestDyingWorker is no test but the program of the next one: its handler kills the process.
func TestDyingWorker(t *testing.T) {
	dsn := os.Getenv(dying)
	if dsn == "" {
		return
	}
	cfg := settings(dsn)
	cfg.Slots, cfg.Lease = 1, time.Second
	w := newWorker(cfg, NewLogger(os.Stderr, "json", "info"))
	w.Handle("t", func(_ context.Context, task *Task) (any, error) {
		if string(task.Request) == `{"long": true}` {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil, nil
	})
	_ = w.Run(context.Background())
}

func TestWhatWaitedInAKilledProcessIsRecovered(t *testing.T) {
	dsn := testdb.New(t)
	r := &rig{t: t, dsn: dsn, db: testdb.Connect(t, dsn)}
	r.submitAll("before", 60, "{}")
	program := exec.Command(os.Args[0], "-test.run=^TestDyingWorker$")
	program.Env = append(os.Environ(), dying+"="+dsn)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Process.Kill() })
	r.completed("before", 60)
	r.exec(`INSERT INTO tasks (task_id, status, task_type, request)
		SELECT 's' || i, 'pending', 't', CASE i WHEN 1 THEN '{"long": true}' ELSE '{}' END::jsonb FROM generate_series(1, 6) i`)
	var ended *exec.ExitError
	if err := program.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("ended with %v", err)
	}
	if n := value[int](r, "SELECT count(*) FROM tasks WHERE status = 'running'"); n != 6 {
		t.Errorf("it held %d", n)
	}
	var calls atomic.Int64
	next := start(t, dsn, one, map[string]Func{"t": counting(&calls)})
	next.completed("s", 6)
	if calls.Load() != 6 {
		t.Errorf("%d calls", calls.Load())
	}
	// the first had the slot; the others had not begun, and have lost nothing
	if n := value[int](r, "SELECT sum(attempts) FROM tasks WHERE task_id LIKE 's%'"); n != 2+5 {
		t.Errorf("%d attempts", n)
	}
}
