package worker

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	heap "runtime/metrics"
	"time"
)

const (
	smallWorker   = 64       // slots
	tinyWorker    = 4        // slots
	tinyGC        = 25       // percent: a heap of 4 MiB before the first collection is more than such a worker may have
	mostGC        = 400      // percent
	garbage       = 64 << 20 // bytes that a large worker lets gather before it collects, where that is not too often
	tidyEvery     = 10 * time.Second
	afterActivity = 2 * time.Second
)

// tune makes a tiny worker, of which a fleet has many, small; and cheap, since threads that look for work in vain cost
// it more than its own. A large worker collects seldom while its heap is small. GOGC and GOMAXPROCS of the environment go
// first.
func tune(slots int) {
	if os.Getenv("GOGC") == "" {
		switch {
		case slots <= tinyWorker:
			debug.SetGCPercent(tinyGC)
		case slots > smallWorker:
			debug.SetGCPercent(mostGC)
			go followHeap()
		}
	}
	if slots > tinyWorker {
		return
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// followHeap makes collections as frequent as usual where the heap is not small any more.
func followHeap() {
	live := []heap.Sample{{Name: "/gc/heap/live:bytes"}}
	for percent := mostGC; ; time.Sleep(afterActivity) {
		heap.Read(live)
		if wanted := gcPercent(live[0].Value.Uint64()); wanted != percent {
			percent = wanted
			debug.SetGCPercent(percent)
		}
	}
}

// gcPercent lets garbage of so many bytes gather beside a live heap, but at least as much as is live.
func gcPercent(live uint64) int {
	return int(min(max(garbage*100/max(live, 1), 100), mostGC))
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
