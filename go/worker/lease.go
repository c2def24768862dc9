package worker

import (
	"context"
	"errors"
	"time"
)

// The lease keeper. A lease counts from the moment its claim or renewal was SENT. It is renewed at a third of its
// time, and a call whose lease could not be renewed is stopped before the lease ends: leaseMargin is the time that
// the call has to stop in.

const (
	stopPatience = 5 * time.Second // after it a handler that was told to stop counts as stuck
)

var errClosed = errors.New("closed")

func leaseMargin(lease time.Duration) time.Duration { return max(lease/10, 300*time.Millisecond) }

// renew renews everything that is held, in one call. With nothing held it is the worker's sign of life, and proves
// that the connection is alive.
func (l *link) renew(ctx context.Context) error {
	var held []*attempt
	l.w.book.each(func(a *attempt) {
		if !a.lost {
			held = append(held, a)
		}
	})
	sent := now()
	found, err := l.renewals(ctx, held)
	if err != nil && !rowLocked(err) {
		return err
	}
	switch busy := l.apply(found, sent); {
	case busy || err != nil:
		l.next(sent + min(l.w.cfg.Lease/10, time.Second))
	case l.w.book.count() > 0: // with a long lease too it says that it lives, and how much it holds
		l.next(sent + min(l.w.cfg.Lease/3, jitter(signOfLife, 0.8, 1.2)))
	default:
		l.next(sent + jitter(signOfLife, 0.8, 1.2))
	}
	return nil
}

func (l *link) renewals(ctx context.Context, held []*attempt) ([]verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, l.w.callTimeout())
	defer cancel()
	return l.client.renew(ctx, l.w.id, held, l.w.cfg.Lease, l.w.isDraining())
}

func (l *link) next(at time.Duration) {
	l.mu.Lock()
	l.renewAt = at
	l.mu.Unlock()
}

// apply says whether some lease is still to be renewed, because somebody else holds the row.
func (l *link) apply(found []verdict, sent time.Duration) (busy bool) {
	for _, each := range found {
		a := l.w.book.find(each.token)
		if a == nil {
			continue
		}
		l.w.book.mu.Lock()
		lost := false
		switch {
		case each.outcome == "busy":
			busy = true
		case each.outcome != "stale":
			a.endsAt = sent + l.w.cfg.Lease
			if each.outcome == "cancel" {
				a.stop(ErrCancelled)
			}
		case !a.settles && !a.lost: // a settled one may just have been written, and its answer lost
			lost, a.lost = true, true
			a.stop(errStale)
		}
		l.w.book.mu.Unlock()
		if lost {
			l.w.log.Warn("lease_lost", "task_id", a.task.ID, "token", a.task.Token, "reason", "stale")
		}
	}
	return busy
}

// watch stops calls whose time or lease is up. It needs no database.
func (w *Worker) watch(ctx context.Context) {
	ticker := time.NewTicker(min(max(w.margin/3, 50*time.Millisecond), time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var lost, stuck []*attempt
		at := now()
		w.book.each(func(a *attempt) {
			if a.settles {
				return
			}
			if !a.lost && at >= a.endsAt-w.margin {
				a.lost = true
				a.stop(ErrLeaseLost)
				lost = append(lost, a)
			}
			if time.Since(a.begun) > a.task.Timeout {
				a.stop(ErrTimeout)
			}
			if a.cause != nil && a.hardAt == 0 {
				a.hardAt = a.stopped + a.task.Timeout
			}
			if a.cause != nil && !a.stuck && at > a.stopped+stopPatience {
				a.stuck = true
				stuck = append(stuck, a)
			}
			if a.cause != nil && at > a.hardAt { // let go: the slot stays counted, the lease runs out
				a.lost = true
			}
		})
		for _, a := range lost {
			w.log.Warn("lease_lost", "task_id", a.task.ID, "token", a.task.Token, "reason", "not_renewed")
		}
		for _, a := range stuck {
			w.log.Warn("handler_stuck", "task_id", a.task.ID, "task_type", a.task.Type, "token", a.task.Token, "seconds", round(time.Since(a.begun)))
		}
	}
}
