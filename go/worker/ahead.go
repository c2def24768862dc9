package worker

import "time"

// Where tasks end sooner than a claim takes, a slot is idle most of the time. So a worker that may, and whose last tasks were
// short, claims more than its free slots: they are the process's, count for the limit and have their lease, but wait until a
// slot is free. Where that takes longer than aheadPatience they are given back, for others to take.

const (
	shortTask     = 2 * time.Millisecond
	aheadPatience = 20 * time.Millisecond
	// larger claims would not be cheaper by task
	aheadMost = 200
)

// ahead is the part of the book that tells who is in a slot, and who waits for one.
type ahead struct {
	perSlot int        // so many more for each free slot, at most; see TASKGATE_CLAIM_AHEAD
	running int        // handlers, in as many slots
	waiting []*attempt // for a slot, in the order they were claimed
	short   int        // tasks in a row that were
	giveUp  *time.Timer
}

// ask is for how many tasks to claim: for free slots, and ahead. A worker begins carefully, and stops at the first task
// that is not short.
func (b *book) ask(free int) (slots, ahead int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slots = max(0, free)
	if len(b.waiting) == 0 && b.running < b.slots {
		ahead = max(0, min(b.short, b.perSlot*(b.slots-b.running), aheadMost-b.slots)+min(0, free))
		if slots == 0 && ahead < gatherTasks/2 {
			ahead = 0
		}
	}
	return slots, ahead
}

// enter says whether a slot is free for the attempt, and takes it; else the attempt waits for one.
func (b *book) enter(a *attempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running >= b.slots {
		b.waiting = append(b.waiting, a)
		return false
	}
	b.running++
	return true
}

// leave is called by an attempt whose handler has ended; the one that has its slot now, if any waits.
func (b *book) leave(a *attempt) *attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch took := time.Since(a.begun); {
	case !a.succeeded || a.cause != nil || took > aheadPatience:
		b.short = 0
	case took > shortTask:
		b.short /= 2
	default:
		b.short++
	}
	if len(b.waiting) == 0 {
		b.running--
		return nil
	}
	next := b.waiting[0]
	b.waiting = b.waiting[1:]
	next.begun = time.Now()
	return next
}

// boundWait gives back what still waits for a slot after aheadPatience.
func (w *Worker) boundWait() {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	switch {
	case len(w.book.waiting) == 0:
	case w.book.giveUp == nil:
		w.book.giveUp = time.AfterFunc(aheadPatience, w.giveBackWaiting)
	default:
		w.book.giveUp.Reset(aheadPatience)
	}
}

func (w *Worker) giveBackWaiting() {
	w.book.mu.Lock()
	waiting := w.book.waiting
	if len(waiting) == 0 || time.Since(waiting[0].begun) < aheadPatience { // of the next claim, whose time has just begun
		w.book.mu.Unlock()
		return
	}
	w.book.waiting, w.book.short = nil, 0
	w.book.mu.Unlock()
	for _, a := range waiting {
		w.settle(a, nil, errNoSlot)
		a.cancel(nil)
	}
}
