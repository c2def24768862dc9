package worker

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

const (
	smallWorker   = 64 // slots
	smallGC       = 25 // percent: a heap of 4 MiB before the first collection is more than such a worker may have
	tidyEvery     = 10 * time.Second
	afterActivity = 2 * time.Second
)

// tuneMemory makes a small worker small. A large one keeps Go's own settings, where speed counts. GOGC of the
// environment goes first.
func tuneMemory(slots int) {
	if slots <= smallWorker && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(smallGC)
	}
}

// tidyMemory gives memory back to the system after work: soon after it, and now and then while it goes on. The
// runtime itself would keep it for minutes.
func (w *Worker) tidyMemory(ctx context.Context) {
	if w.cfg.Slots > smallWorker {
		return
	}
	var seen, tidied int64
	ticker := time.NewTicker(afterActivity)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		activity := w.metrics.claimed.Load()*2 + w.metrics.ended.Load()
		quiet := activity == seen
		seen = activity
		if activity != tidied && (quiet || time.Since(last) > tidyEvery) {
			debug.FreeOSMemory()
			tidied, last = activity, time.Now()
		}
	}
}
