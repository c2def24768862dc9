package worker

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	flushPatience = 5 * time.Second // to write what is left, after the grace period
	hurry         = 2 * time.Second // the same after a second signal
	obedience     = time.Second     // for a handler to return once it is told to stop
)

// Exit codes of Main.
const (
	ExitDone     = 0
	ExitFailed   = 1
	ExitConfig   = 2
	ExitMismatch = 3
)

// Main runs the worker until SIGTERM or SIGINT, and answers the program's exit code. The first signal drains, the
// second stops at once (exit code 128 + signal).
func (w *Worker) Main() int {
	tune(w.cfg.Slots) // here, where the worker is the whole program
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	second := make(chan os.Signal, 1)
	go func() {
		<-signals
		w.Drain()
		second <- <-signals
		w.StopNow()
	}()
	err := w.Run(context.Background())
	select {
	case sent := <-second:
		if number, ok := sent.(syscall.Signal); ok {
			return 128 + int(number)
		}
		return ExitFailed
	default:
	}
	switch err.(type) {
	case nil:
		return ExitDone
	case *SchemaMismatch:
		return ExitMismatch
	case *ConfigError:
		w.log.Error("configuration", "error", err.Error())
		return ExitConfig
	}
	w.log.Error("failed", "error", err.Error())
	return ExitFailed
}

// finish ends a worker that claims no more: lets calls finish for the grace period, gives back the rest, writes
// everything. Leases are renewed all the while.
func (w *Worker) finish(claiming <-chan struct{}) {
	grace := time.NewTimer(w.cfg.Grace)
	defer grace.Stop()
	select { // a claim under way brings tasks that must be known before they can be given back
	case <-claiming:
	case <-time.After(hurry):
	}
	hurried := !w.awaitEmpty(grace.C, w.atOnce)
	patience := flushPatience
	select {
	case <-w.atOnce:
		w.log.Warn("stopping_now", "running", w.book.count())
		patience = hurry
	default:
	}
	if hurried {
		w.giveBack(patience)
	}
	w.link.close()
	select {
	case <-w.link.done:
	case <-time.After(hurry):
	}
}

// giveBack stops what still runs and releases it, without costing an attempt.
func (w *Worker) giveBack(patience time.Duration) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	w.book.each(func(a *attempt) { a.stop(ErrShutdown) })
	if w.awaitEmpty(time.After(min(obedience, patience/2)), nil) {
		return
	}
	// handlers that do not stop: the process is about to end, and they with it
	var stubborn []*attempt
	w.book.each(func(a *attempt) {
		if !a.settles && !a.lost {
			a.settles = true
			stubborn = append(stubborn, a)
		}
	})
	for _, a := range stubborn {
		s := settlement{attempt: a, took: time.Since(a.begun)}
		s.giveBack("released", "the worker stopped")
		w.link.settle(s)
	}
	w.awaitEmpty(limit.C, nil)
}

// awaitEmpty waits until nothing is held; false when one of the channels was first.
func (w *Worker) awaitEmpty(timeout <-chan time.Time, stop <-chan struct{}) bool {
	for w.book.count() > 0 {
		select {
		case <-w.book.empty:
		case <-timeout:
			return false
		case <-stop:
			return false
		}
	}
	return true
}
