package worker

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

const aheadPerSlot = 9

// inSlots is how many handlers run, and how many tasks wait for a slot.
func (b *book) inSlots() (running, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running, len(b.waiting)
}

func (b *book) inARow() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.short
}

// taking is an attempt whose handler has just ended, after so long.
func taking(took time.Duration) *attempt {
	return &attempt{task: &Task{}, begun: time.Now().Add(-took), succeeded: true}
}

// after is a book of so many slots whose tasks took so long.
func after(slots int, took ...time.Duration) *book {
	b := newBook(slots, aheadPerSlot)
	for _, each := range took {
		a := taking(each)
		b.enter(a)
		b.leave(a)
	}
	return b
}

func repeat(n int, took time.Duration) (all []time.Duration) {
	for range n {
		all = append(all, took)
	}
	return all
}

func TestAskBeginsCarefullyAndEndsWithALongTask(t *testing.T) {
	const middling, long = (shortTask + aheadPatience) / 2, 2 * aheadPatience
	short := repeat(30, 0)
	for _, c := range []struct {
		name        string
		slots       int
		took        []time.Duration
		free        int
		want, ahead int
	}{
		{"a new worker", 1, nil, 1, 1, 0},
		{"after one", 1, repeat(1, 0), 1, 1, 1},
		{"after five", 1, repeat(5, 0), 1, 1, 5},
		{"no more than nine a slot", 1, short, 1, 1, 9},
		{"more for more slots", 3, short, 3, 3, 27},
		{"no more than the row is long", 20, short, 20, 20, 30},
		{"no more than are worth it", 150, repeat(1000, 0), 150, 150, aheadMost - 150},
		{"many slots need none", aheadMost + 1, short, 10, 10, 0},
		{"after a long one", 1, append(repeat(30, 0), long), 1, 1, 0},
		{"after a long one and three short ones", 1, append(append(repeat(30, 0), long), repeat(3, 0)...), 1, 1, 3},
		{"a middling one halves it", 1, append(repeat(12, 0), middling), 1, 1, 6},
		{"middling ones end it", 1, append(repeat(12, 0), repeat(4, middling)...), 1, 1, 0},
		{"what is held counts", 1, short, -3, 0, 0},
		{"with no slot free only many are worth a claim", 20, repeat(300, 0), -20, 0, aheadPerSlot*20 - 20},
		{"few are not", 5, repeat(300, 0), 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if slots, ahead := after(c.slots, c.took...).ask(c.free); slots != c.want || ahead != c.ahead {
				t.Errorf("have %d and %d ahead, want %d and %d", slots, ahead, c.want, c.ahead)
			}
		})
	}
}

func TestATaskThatDidNotSucceedEndsTheRow(t *testing.T) {
	b := after(1, repeat(9, 0)...)
	failed := &attempt{task: &Task{}, begun: time.Now()}
	b.enter(failed)
	b.leave(failed)
	if b.inARow() != 0 {
		t.Error("a failure is no short task: it may be the start of many")
	}
	b = after(1, repeat(9, 0)...)
	stopped := taking(0)
	stopped.cause = ErrCancelled
	b.enter(stopped)
	b.leave(stopped)
	if b.inARow() != 0 {
		t.Error("nor is one that was stopped")
	}
}

func TestAskIsForTheSlotsThatAreFree(t *testing.T) {
	b := after(4, repeat(99, 0)...)
	var all []*attempt
	for i := range 6 {
		slots, ahead := b.ask(4 - i)
		want := aheadPerSlot * (4 - i)
		if i >= 4 {
			want = 0
		}
		if slots != max(0, 4-i) || ahead != want {
			t.Errorf("with %d running: %d and %d ahead, want %d", i, slots, ahead, want)
		}
		a := taking(0)
		all = append(all, a)
		if b.enter(a) != (i < 4) {
			t.Errorf("attempt %d", i)
		}
	}
	if running, waiting := b.inSlots(); running != 4 || waiting != 2 {
		t.Fatalf("%d run, %d wait", running, waiting)
	}
	if b.leave(all[0]) != all[4] {
		t.Error("the slot goes to the first that waits")
	}
	if slots, ahead := b.ask(1); slots != 1 || ahead != 0 {
		t.Errorf("%d and %d ahead, while one waits", slots, ahead)
	}
	if b.leave(all[1]) != all[5] || b.leave(all[4]) != nil || b.leave(all[5]) != nil || b.leave(all[2]) != nil || b.leave(all[3]) != nil {
		t.Error("nobody waits any more")
	}
	if running, waiting := b.inSlots(); running != 0 || waiting != 0 {
		t.Errorf("%d run, %d wait", running, waiting)
	}
}

// bare is a worker that never runs, of which only the book and the buffer are used.
func bare(t *testing.T, slots int, handler Func) *Worker {
	w := newWorker(Config{Slots: slots, ClaimAhead: aheadPerSlot, Lease: time.Minute, Timeout: time.Minute, MaxResultBytes: 1000}, NewLogger(&lines{}, "json", "info"))
	w.base = t.Context()
	w.Handle("t", handler)
	return w
}

func held(w *Worker, from, to int64) {
	for token := from; token <= to; token++ {
		w.begin(&Task{ID: fmt.Sprint(token), Token: token, Type: "t"}, now())
	}
}

// all are the settlements that wait, taken out.
func (b *buffer) all() (found []settlement) {
	for v, batch := b.take(); len(batch) > 0; v, batch = b.take() {
		for _, s := range batch {
			if s.verb != v {
				panic("a settlement in another's line")
			}
			found = append(found, s)
		}
	}
	return found
}

func TestWhatWaitsTooLongIsGivenBackInOrder(t *testing.T) {
	finish := make(chan struct{})
	w := bare(t, 1, func(context.Context, *Task) (any, error) { <-finish; return nil, nil })
	w.book.short = 9
	held(w, 1, 6)
	w.boundWait()
	var back []settlement
	testdb.Until(t, "the releases", func() bool { back = append(back, w.link.buffer.all()...); return len(back) == 5 })
	for i, s := range back {
		if s.attempt.task.Token != int64(i+2) || s.verb != verbRelease || s.code != "released" || *s.delay != 0 || s.attempt.ctx.Err() == nil {
			t.Errorf("%d: %+v", i, s)
		}
	}
	if running, waiting := w.book.inSlots(); running != 1 || waiting != 0 || w.book.inARow() != 0 || w.book.count() != 6 {
		t.Errorf("%d run, %d wait, a row of %d, %d held", running, waiting, w.book.inARow(), w.book.count())
	}
	if slots, ahead := w.book.ask(1); slots != 1 || ahead != 0 {
		t.Errorf("it asks for %d and %d ahead", slots, ahead)
	}
	close(finish)
	testdb.Until(t, "a free slot", func() bool { running, _ := w.book.inSlots(); return running == 0 })
	if rest := w.link.buffer.all(); len(rest) != 1 || rest[0].attempt.task.Token != 1 || rest[0].verb != verbComplete {
		t.Errorf("%+v", rest)
	}
	if w.book.inARow() != 0 {
		t.Error("the long task begins a row")
	}
}

func TestATimerOfTheLastClaimGivesBackNothingOfTheNext(t *testing.T) {
	finish := make(chan struct{})
	defer close(finish)
	w := bare(t, 1, func(context.Context, *Task) (any, error) { <-finish; return nil, nil })
	w.book.short = 9
	held(w, 1, 3)
	w.giveBackWaiting()
	if _, waiting := w.book.inSlots(); waiting != 2 || w.book.inARow() != 9 || w.link.buffer.count() != 0 {
		t.Errorf("%d wait, a row of %d, %d outcomes", waiting, w.book.inARow(), w.link.buffer.count())
	}
}

func TestShortTasksPassThroughTheirSlotsOneByOne(t *testing.T) {
	for _, slots := range []int{1, 3} {
		var g gauge
		w := bare(t, slots, func(context.Context, *Task) (any, error) {
			g.enter()
			defer g.leave()
			time.Sleep(100 * time.Microsecond)
			return nil, nil
		})
		held(w, 1, 60) // no bound: none is given back
		testdb.Until(t, "their end", func() bool { return w.link.buffer.count() == 60 })
		testdb.Until(t, "free slots", func() bool { running, waiting := w.book.inSlots(); return running+waiting == 0 })
		if int(g.most.Load()) != slots || g.calls.Load() != 60 {
			t.Errorf("%d slots: %d at once in %d calls", slots, g.most.Load(), g.calls.Load())
		}
	}
}

func TestAHandlerThatEndsItsGoroutineOrPanicsLeavesItsSlot(t *testing.T) {
	w := bare(t, 1, func(_ context.Context, task *Task) (any, error) {
		switch task.Token {
		case 1:
			panic("broken")
		case 2:
			runtime.Goexit()
		case 3:
			return nil, unprintable{}
		}
		return nil, nil
	})
	held(w, 1, 4)
	testdb.Until(t, "all outcomes", func() bool { return w.link.buffer.count() == 4 })
	testdb.Until(t, "a free slot", func() bool { running, waiting := w.book.inSlots(); return running+waiting == 0 })
	if w.book.inARow() != 1 {
		t.Errorf("a row of %d", w.book.inARow())
	}
}

type unprintable struct{}

func (unprintable) Error() string { panic("it cannot be described") }
