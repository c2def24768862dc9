package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/cutproxy"
	"github.com/taskgate/taskgate/go/internal/testdb"
)

// cycling is a claimer of one slot that the test drives itself, with one task in hand and another that waits.
func cycling(t *testing.T, dsn, through string) (*rig, *claimer, settlement) {
	t.Helper()
	r := standing(t, dsn, through)
	c := &claimer{w: r.w}
	r.connect(c)
	r.submit("first", "t", "{}")
	r.submit("second", "t", "{}")
	found := r.cycle(c, 0, nil)
	one := &attempt{task: found.tasks[0], begun: time.Now(), endsAt: now() + time.Minute}
	r.w.book.add(one)
	return r, c, settlement{attempt: one, verb: verbComplete, result: []byte("1")}
}

func (r *rig) connect(c *claimer) {
	r.t.Helper()
	client, err := r.w.open(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	c.client = client
	r.t.Cleanup(func() { closeNow(client.conn) })
}

func (r *rig) cycle(c *claimer, v verb, batch []settlement) claimAnswer {
	r.t.Helper()
	free, held := r.w.book.free()
	found, err := c.cycle(r.t.Context(), v, batch, free, held)
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

func TestACycleWritesAndClaimsAtOnce(t *testing.T) {
	dsn := testdb.New(t)
	r, c, ended := cycling(t, dsn, dsn)
	found := r.cycle(c, verbComplete, []settlement{ended})
	if len(found.tasks) != 1 || found.tasks[0].ID != "second" || found.tasks[0].again {
		t.Fatalf("%+v", found)
	}
	if have := r.row("first"); have.Status != "completed" || r.w.book.count() != 0 {
		t.Errorf("%+v, %d held", have, r.w.book.count())
	}
}

func TestACycleWhoseAnswersAreLost(t *testing.T) {
	for arrive := range 3 {
		t.Run(fmt.Sprintf("all but %d", arrive), func(t *testing.T) {
			dsn := testdb.New(t)
			proxy, through := cutproxy.New(t, dsn)
			r, c, ended := cycling(t, dsn, through)
			if _, err := c.client.prepare(t.Context(), sqlComplete); err != nil { // a round trip of its own
				t.Fatal(err)
			}
			proxy.Lose(arrive, 3)
			free, held := r.w.book.free()
			limited, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if found, err := c.cycle(limited, verbComplete, []settlement{ended}, free, held); err == nil {
				t.Fatalf("an answer that did not come counts: %+v", found)
			}
			testdb.Until(t, "the server's part", func() bool {
				return r.row("first").Status == "completed" && r.row("second").Status == "running"
			})
			waiting := map[bool]int{true: 1, false: 0}[arrive == 0]
			if r.w.link.buffer.count() != waiting || r.w.book.count() != waiting {
				t.Errorf("%d outcomes wait, %d are held; want %d", r.w.link.buffer.count(), r.w.book.count(), waiting)
			}
			r.connect(c)
			v, batch := c.outcomes()
			found := r.cycle(c, v, batch)
			if len(found.tasks) != 1 || found.tasks[0].ID != "second" || !found.tasks[0].again {
				t.Errorf("%+v", found)
			}
			if r.w.book.count() != 0 || r.w.metrics.ended.Load() != 1 || len(r.log.events("result_refused")) != 0 {
				t.Errorf("%d held, %d ended", r.w.book.count(), r.w.metrics.ended.Load())
			}
			if have := r.row("first"); have.Result != "1" || have.Attempts != 1 {
				t.Errorf("%+v", have)
			}
		})
	}
}

// holdFirst is somebody's open transaction, until the test ends, that keeps the outcome of `first` from being written.
func holdFirst(t *testing.T, dsn string) {
	tx, err := testdb.Connect(t, dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM tasks WHERE task_id = 'first' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
}

func TestASlotIsFreeBeforeItsOutcomeIsWritten(t *testing.T) {
	dsn := testdb.New(t)
	r, c, ended := cycling(t, dsn, dsn)
	holdFirst(t, dsn)
	found := r.cycle(c, verbComplete, []settlement{ended})
	if len(found.tasks) != 1 {
		t.Fatalf("%+v", found)
	}
	c.start(found.tasks, now())
	testdb.Until(t, "the end of the second", func() bool { return r.w.link.buffer.count() == 1 })
	if v, batch := r.w.link.buffer.take(); v != verbComplete || len(batch) != 1 || batch[0].attempt.task.ID != "second" {
		t.Errorf("%s %+v", v, batch)
	}
	testdb.Until(t, "a free slot", func() bool { running, waiting := r.w.book.inSlots(); return running+waiting == 0 })
}

func TestAnOutcomeIsWrittenAlsoWithNoSlotFree(t *testing.T) {
	dsn := testdb.New(t)
	r, c, ended := cycling(t, dsn, dsn)
	holdFirst(t, dsn)
	r.w.book.enter(ended.attempt)
	c.start(r.cycle(c, verbComplete, []settlement{ended}).tasks, now()) // one slot, two tasks: the second goes back
	testdb.Until(t, "its patience to end", func() bool { return r.w.link.buffer.count() == 1 })
	c.recoverAt, c.purgeAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	if _, err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if have := r.row("second"); have.Status != "pending" || have.Attempts != 0 || have.Releases != 1 {
		t.Errorf("%+v: its release was lost", have)
	}
}

func TestAnOutcomeThatIsRefusedLeavesTheClaimAlone(t *testing.T) {
	dsn := testdb.New(t)
	r, c, ended := cycling(t, dsn, dsn)
	ended.result = []byte("{")
	if found := r.cycle(c, verbComplete, []settlement{ended}); len(found.tasks) != 1 || found.tasks[0].ID != "second" {
		t.Errorf("%+v", found)
	}
	if v, batch := r.w.link.buffer.take(); v != verbFail || len(batch) != 1 || batch[0].code != "outcome_refused" {
		t.Errorf("%s %+v", v, batch)
	}
}

func TestOutcomesGoToWhoIsAtHand(t *testing.T) {
	w := New(Config{Slots: 1})
	c := claimer{w: w}
	c.attend(true)
	w.link.settle(settlement{})
	select {
	case <-w.book.freed:
	default:
		t.Error("the claimer sleeps on")
	}
	if w.link.kicked {
		t.Error("the link was woken as well")
	}
	c.attend(false)
	w.link.settle(settlement{})
	if !w.link.kicked {
		t.Error("nobody writes it")
	}
	c.w.cfg.DatabasePooler = true
	if c.attend(true); w.link.attended.Load() {
		t.Error("a pipeline through a pooler")
	}
}
