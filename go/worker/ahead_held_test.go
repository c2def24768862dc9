package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// holding is a worker of one slot with its link and without its claimer, in whose slot `first` runs until it is
// finished, while the others wait. No bound is set to that: the test does what is to happen meanwhile.
func holding(t *testing.T, change func(*Config), first, other Func, waiting ...string) *rig {
	t.Helper()
	dsn := testdb.New(t)
	cfg := settings(dsn)
	cfg.Slots = 1
	if change != nil {
		change(&cfg)
	}
	r := &rig{t: t, dsn: dsn, log: &lines{}, db: testdb.Connect(t, dsn)}
	r.w = newWorker(cfg, NewLogger(r.log, "json", "info"))
	hard, stop := context.WithCancel(context.Background())
	r.w.base = hard
	r.w.Handle("t", func(ctx context.Context, task *Task) (any, error) {
		if task.ID == "first" {
			return first(ctx, task)
		}
		return other(ctx, task)
	})
	if err := r.w.prepare(); err != nil {
		t.Fatal(err)
	}
	c := &claimer{w: r.w}
	r.connect(c)
	go r.w.link.run(hard)
	t.Cleanup(func() { stop(); <-r.w.link.done })
	for _, id := range append([]string{"first"}, waiting...) {
		r.submit(id, "t", "{}")
	}
	r.w.book.short = 9
	found := r.cycle(c, 0, nil)
	if len(found.tasks) != 1+len(waiting) {
		t.Fatalf("%d claimed", len(found.tasks))
	}
	for _, task := range found.tasks {
		r.w.begin(task, now())
	}
	r.w.link.renewBy(now() + cfg.Lease/3)
	if running, waits := r.w.book.inSlots(); running != 1 || waits != len(waiting) {
		t.Fatalf("%d run, %d wait", running, waits)
	}
	return r
}

// until is a handler that ends with the channel, or its context.
func until(finish <-chan struct{}) Func {
	return func(ctx context.Context, _ *Task) (any, error) {
		select {
		case <-finish:
			return "finished", nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// counting is a handler that does nothing but count.
func counting(calls *atomic.Int64) Func {
	return func(context.Context, *Task) (any, error) { calls.Add(1); return nil, nil }
}

func (r *rig) wasGivenBack(id string) {
	r.t.Helper()
	if have := r.row(id); have.Status != "pending" || have.Attempts != 0 || have.Releases != 1 {
		r.t.Errorf("%s: %+v", id, have)
	}
}

// idle says that nothing is left in the worker.
func (r *rig) idle() bool {
	running, waiting := r.w.book.inSlots()
	return running+waiting+r.w.book.count()+r.w.link.buffer.count() == 0
}

func TestLeasesOfWhatWaitsAreRenewed(t *testing.T) {
	finish := make(chan struct{})
	var calls atomic.Int64
	r := holding(t, func(cfg *Config) { cfg.Lease = time.Second }, until(finish), counting(&calls), "a", "b")
	for _, id := range []string{"first", "a", "b"} {
		from := value[time.Time](r, "SELECT locked_until FROM tasks WHERE task_id = $1", id)
		testdb.Until(t, "renewals of "+id, func() bool {
			return value[bool](r, "SELECT locked_until > $2::timestamptz + interval '1.5 seconds' FROM tasks WHERE task_id = $1", id, from)
		})
	}
	close(finish)
	for _, id := range []string{"first", "a", "b"} {
		if have := r.ended(id); have.Status != "completed" || have.Attempts != 1 {
			t.Errorf("%s: %+v", id, have)
		}
	}
	testdb.Until(t, "an idle worker", r.idle)
	if calls.Load() != 2 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestWhatIsCancelledWhileItWaitsDoesNotBegin(t *testing.T) {
	finish := make(chan struct{})
	var calls atomic.Int64
	r := holding(t, nil, until(finish), counting(&calls), "a", "b")
	if answer := value[string](r, "SELECT taskgate.cancel('a')"); answer != "cancelling" {
		t.Fatal(answer)
	}
	testdb.Until(t, "the word to reach it", func() bool { return r.stopsFor("a") == ErrCancelled })
	close(finish)
	if have := r.ended("a"); have.Status != "failed" || have.Code != "cancelled" {
		t.Errorf("%+v", have)
	}
	if have := r.ended("b"); have.Status != "completed" {
		t.Errorf("%+v", have)
	}
	testdb.Until(t, "an idle worker", r.idle)
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

// stopsFor is why the attempt at a task was told to stop.
func (r *rig) stopsFor(id string) (cause error) {
	r.w.book.each(func(a *attempt) {
		if a.task.ID == id {
			cause = a.cause
		}
	})
	return cause
}

func TestWhatIsCancelledWhileItWaitsEndsAlsoWhenGivenBack(t *testing.T) {
	finish := make(chan struct{})
	defer close(finish)
	var calls atomic.Int64
	r := holding(t, nil, until(finish), counting(&calls), "a", "b")
	if answer := value[string](r, "SELECT taskgate.cancel('a')"); answer != "cancelling" {
		t.Fatal(answer)
	}
	testdb.Until(t, "the word to reach it", func() bool { return r.stopsFor("a") == ErrCancelled })
	r.w.boundWait()
	if have := r.ended("a"); have.Status != "failed" || have.Code != "cancelled" {
		t.Errorf("%+v", have)
	}
	testdb.Until(t, "the other's release", func() bool { return r.w.book.count() == 1 })
	r.wasGivenBack("b")
}

// An open operation at the provider is for the handler to cancel.
func TestAPaidOperationIsCancelledByItsHandlerAlsoIfItWaited(t *testing.T) {
	finish := make(chan struct{})
	told := make(chan error, 1)
	r := holding(t, nil, until(finish), func(ctx context.Context, task *Task) (any, error) {
		told <- context.Cause(ctx)
		return nil, ErrCancelled
	}, "a")
	r.w.book.each(func(a *attempt) {
		if a.task.ID == "a" {
			a.task.Paid = &Paid{}
			a.stop(ErrCancelled)
		}
	})
	close(finish)
	if cause := receive(t, told); cause != ErrCancelled {
		t.Errorf("%v", cause)
	}
}

func TestALeaseLostWhileItWaits(t *testing.T) {
	finish := make(chan struct{})
	var calls atomic.Int64
	r := holding(t, func(cfg *Config) { cfg.Lease = time.Second }, until(finish), counting(&calls), "a", "b")
	r.exec("UPDATE tasks SET claim_token = nextval('taskgate.claim_token_seq'), worker_id = 'another' WHERE task_id = 'a'")
	testdb.Until(t, "the renewal", func() bool { return errors.Is(r.stopsFor("a"), errStale) })
	close(finish)
	r.ended("b")
	testdb.Until(t, "an idle worker", r.idle)
	if have := r.row("a"); have.Status != "running" || calls.Load() != 1 {
		t.Errorf("%+v, %d calls", have, calls.Load())
	}
}

func TestATimeLimitDoesNotCountTheWait(t *testing.T) {
	finish := make(chan struct{})
	var calls atomic.Int64
	r := holding(t, nil, until(finish), counting(&calls), "a")
	r.w.book.each(func(a *attempt) {
		if a.task.ID == "a" {
			a.begun = a.begun.Add(-2 * a.task.Timeout)
		}
	})
	watching, end := context.WithCancel(t.Context())
	defer end()
	go r.w.watch(watching)
	testdb.Until(t, "its time to be over", func() bool { return r.stopsFor("a") == ErrTimeout })
	close(finish)
	testdb.Until(t, "its release", r.idle)
	r.wasGivenBack("a")
	if calls.Load() != 0 {
		t.Error("it was called with its context ended")
	}
}

func TestDrainRunsWhatWaits(t *testing.T) {
	finish := make(chan struct{})
	var calls atomic.Int64
	r := holding(t, nil, until(finish), counting(&calls), "a", "b")
	r.w.Drain()
	over := r.finishing()
	close(finish)
	receive(t, over)
	for _, id := range []string{"first", "a", "b"} {
		if have := r.row(id); have.Status != "completed" || have.Releases != 0 {
			t.Errorf("%s: %+v", id, have)
		}
	}
}

// finishing ends the worker as Run does.
func (r *rig) finishing() <-chan bool {
	claiming, over := make(chan struct{}), make(chan bool, 1)
	close(claiming)
	go func() { r.w.finish(claiming); over <- true }()
	return over
}

func TestStopNowGivesBackWhatWaits(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	for name, first := range map[string]Func{
		"behind one that stops":       until(never),
		"behind one that is stubborn": func(context.Context, *Task) (any, error) { <-never; return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			r := holding(t, func(cfg *Config) { cfg.Grace = time.Hour }, first, counting(&calls), "a", "b")
			r.w.StopNow()
			receive(t, r.finishing())
			for _, id := range []string{"first", "a", "b"} {
				r.wasGivenBack(id)
			}
			if calls.Load() != 0 {
				t.Errorf("%d calls of what waited", calls.Load())
			}
		})
	}
}
