package worker

import (
	"context"
	"sync"
	"time"
)

// attempt is one claim that this process holds.
type attempt struct {
	task      *Task
	handler   *registered
	ctx       context.Context
	begun     time.Time
	cancel    context.CancelCauseFunc
	endsAt    time.Duration // of the lease, by now()
	stopped   time.Duration // when the handler was told to stop, 0 before
	cause     error         // why
	hardAt    time.Duration // a handler that does not stop is let go then
	lost      bool          // the lease is given up: it is not renewed any more
	stuck     bool          // said in the log
	settles   bool          // the handler has returned, the outcome is on its way
	succeeded bool
}

// book holds every attempt of the process from its claim until the database has confirmed its end. What is not in
// it is handed out again by the next claim.
type book struct {
	mu    sync.Mutex
	slots int
	held  map[int64]*attempt
	ahead
	freed chan struct{} // a slot came free
	empty chan struct{} // a signal when nothing is held
}

func newBook(slots, perSlot int) *book {
	return &book{slots: slots, ahead: ahead{perSlot: perSlot}, held: make(map[int64]*attempt), freed: make(chan struct{}, 1), empty: make(chan struct{}, 1)}
}

func (b *book) add(a *attempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.held[a.task.Token]; known {
		return false
	}
	b.held[a.task.Token] = a
	return true
}

func (b *book) remove(tokens ...int64) {
	b.mu.Lock()
	for _, token := range tokens {
		delete(b.held, token)
	}
	none := len(b.held) == 0
	b.mu.Unlock()
	poke(b.freed)
	if none {
		poke(b.empty)
	}
}

func (b *book) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.held)
}

// free is how many slots are free, and the tokens of the others.
func (b *book) free() (int, []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tokens := make([]int64, 0, len(b.held))
	for token := range b.held {
		tokens = append(tokens, token)
	}
	return b.slots - len(b.held), tokens
}

// each calls f with every attempt, under the lock: f must be short.
func (b *book) each(f func(*attempt)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.held {
		f(a)
	}
}

func (b *book) find(token int64) *attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[token]
}

// leaseOf is when the lease of an attempt ends.
func (b *book) leaseOf(a *attempt) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return a.endsAt
}

// causeOf is why an attempt was told to stop, nil where it was not.
func (b *book) causeOf(a *attempt) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return a.cause
}

// stop tells the handler of an attempt to stop, once. Under the book's lock.
func (a *attempt) stop(cause error) {
	if a.cause != nil || a.settles {
		return
	}
	a.cause, a.stopped = cause, now()
	if a.cancel != nil {
		a.cancel(cause)
	}
}

func poke(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
