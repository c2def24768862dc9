package worker

import (
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// idling is a claimer of one slot that the test drives itself, and that has found nothing to do.
func idling(t *testing.T) (*rig, *claimer) {
	t.Helper()
	dsn := testdb.New(t)
	r := standing(t, dsn, dsn)
	later := time.Now().Add(time.Hour)
	c := &claimer{w: r.w, recoverAt: later, purgeAt: later}
	r.connect(c)
	if pause := r.step(c); pause < time.Second || !c.quiet {
		t.Fatalf("%s, %+v", pause, c)
	} else {
		c.pollAt = time.Now().Add(pause)
	}
	c.recoverAt = later
	return r, c
}

func (r *rig) step(c *claimer) time.Duration {
	r.t.Helper()
	pause, err := c.step(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return pause
}

func TestAPurgeDoesNotMakeAnIdleWorkerClaim(t *testing.T) {
	r, c := idling(t)
	r.submit("a", "t", "{}") // nobody tells the claimer
	c.purgeAt = time.Now()
	if pause := r.step(c); pause < time.Second || !c.purgeAt.After(time.Now()) {
		t.Errorf("%s, the next purge at %s", pause, c.purgeAt)
	}
	if status := r.row("a").Status; status != "pending" {
		t.Error(status)
	}
}

func TestWhatIsOverdueIsTakenBackByAnIdleWorker(t *testing.T) {
	r, c := idling(t)
	r.exec("INSERT INTO tasks (task_id, status, task_type, request, attempts, locked_until, worker_id) VALUES ('a', 'running', 't', '{}', 1, now() - interval '1 h', 'gone')")
	c.recoverAt = time.Now()
	r.exec("UPDATE taskgate.claim_ledger SET swept_at = '-infinity'") // a second is over
	if r.step(c); r.row("a").Attempts != 2 || !c.recoverAt.After(time.Now()) {
		t.Errorf("%+v", r.row("a"))
	}
}

func TestNewsEndsTheQuiet(t *testing.T) {
	for name, tell := range map[string]func(*Worker){
		"called": func(w *Worker) { poke(w.called) }, "told": func(w *Worker) { poke(w.ready) }, "freed": func(w *Worker) { poke(w.book.freed) },
		"settled": func(w *Worker) { w.link.attended.Store(true); w.link.settle(settlement{}) },
	} {
		w := New(Config{Slots: 1})
		later := time.Now().Add(time.Hour)
		c := &claimer{w: w, recoverAt: later, purgeAt: later, pollAt: later, quiet: true}
		tell(w)
		if c.sleep(t.Context(), time.Hour, true); c.pollAt.After(time.Now()) {
			t.Errorf("%s: it would go on waiting", name)
		}
	}
}

func TestAnIdlePollIsOneCall(t *testing.T) {
	r, c := idling(t)
	closeNow(c.client.conn)
	r.connect(c)
	r.submit("a", "t", "{}")
	if found := r.cycle(c, 0, nil); len(found.tasks) != 1 || r.row("a").Status != "running" {
		t.Errorf("%+v", found)
	}
	if _, flushes := c.client.prepared[sqlFlush]; flushes {
		t.Error("it flushes in a call of its own")
	}
}

func TestStoredFilesAreCollectedOncePurgeHasSeenThem(t *testing.T) {
	r, c := idling(t)
	go r.w.collectMedia(t.Context())
	r.exec("INSERT INTO taskgate.media_blobs (store, object, idle_since) VALUES ('postgres', NULL, now() - interval '2 h'), ('file:///elsewhere', 'x', now() - interval '2 h')")
	c.purgeAt = time.Now()
	r.step(c)
	testdb.Until(t, "the file to be deleted", func() bool {
		return value[int](r, "SELECT count(*) FROM taskgate.media_blobs WHERE store = 'postgres'") == 0
	})
	if value[int](r, "SELECT count(*) FROM taskgate.media_blobs") != 1 {
		t.Error("of another store, too")
	}
}

func TestPaceSlowsDownWhileThereIsNothing(t *testing.T) {
	var p pace
	for i, most := range []int{2, 4, 8, 10, 10} {
		pause, limit := p.pause(false), time.Duration(most)*time.Minute
		if pause < limit/2 || pause > limit {
			t.Errorf("%s after %d in vain, want %s at most", pause, i+1, limit)
		}
	}
	if pause := p.pause(true); pause > paceShortest {
		t.Errorf("%s after something was found", pause)
	}
}
