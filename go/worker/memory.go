package worker

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	smallWorker   = 64 // slots
	tinyWorker    = 4  // slots
	tinyGC        = 25 // percent: a heap of 4 MiB before the first collection is more than such a worker may have
	tidyEvery     = 10 * time.Second
	afterActivity = 2 * time.Second
)

// tune makes a tiny worker, of which a fleet has many, small; and cheap, since threads that look for work in vain cost
// it more than its own. Others keep Go's own settings. GOGC and GOMAXPROCS of the environment go first.
func tune(slots int) {
	if slots > tinyWorker {
		return
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(tinyGC)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
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
