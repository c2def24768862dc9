package worker

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Metrics in Prometheus' text format, written here: the client library would cost an idle worker a megabyte, and
// these are a few counters. Format: prometheus.io/docs/instrumenting/exposition_formats.

var durationBuckets = []float64{0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

type metrics struct {
	claimed, ended atomic.Int64

	mu       sync.Mutex
	outcomes map[string]int64
	answers  map[string]int64 // of claim
	buckets  []int64
	sum      float64
}

func (m *metrics) claims(outcome string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers = make(map[string]int64)
	}
	m.answers[outcome]++
}

func (m *metrics) settled(outcome string, took time.Duration) {
	m.ended.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.outcomes == nil {
		m.outcomes, m.buckets = make(map[string]int64), make([]int64, len(durationBuckets)+1)
	}
	m.outcomes[outcome]++
	m.sum += took.Seconds()
	i, _ := slices.BinarySearch(durationBuckets, took.Seconds())
	m.buckets[i]++
}

func (w *Worker) writeMetrics(out io.Writer) {
	m := &w.metrics
	say := func(name, kind, help string) {
		fmt.Fprintf(out, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n", name, help, kind)
	}
	one := func(name, kind, help string, value int64) {
		say(name, kind, help)
		fmt.Fprintf(out, "%s %d\n", name, value)
	}
	one("taskgate_worker_slots", "gauge", "Tasks that this process runs at once, at most.", int64(w.cfg.Slots))
	one("taskgate_worker_running", "gauge", "Attempts under way, or waiting for their outcome to be written.", int64(w.book.count()))
	one("taskgate_worker_claimed_total", "counter", "Attempts begun.", m.claimed.Load())
	m.mu.Lock()
	defer m.mu.Unlock()
	say("taskgate_worker_settled_total", "counter", "Outcomes written, by what became of them.")
	for _, outcome := range []string{"completed", "failed", "released", "cancelled", "refused"} {
		fmt.Fprintf(out, "taskgate_worker_settled_total{outcome=%q} %d\n", outcome, m.outcomes[outcome])
	}
	say("taskgate_worker_claims_total", "counter", "Claim calls by their answer.")
	for _, outcome := range []string{"claimed", "empty", "full", "busy", "unsure"} {
		fmt.Fprintf(out, "taskgate_worker_claims_total{outcome=%q} %d\n", outcome, m.answers[outcome])
	}
	const seconds = "taskgate_worker_attempt_seconds"
	say(seconds, "histogram", "Duration of attempts.")
	total := int64(0)
	for i, bound := range durationBuckets {
		if m.buckets != nil {
			total += m.buckets[i]
		}
		fmt.Fprintf(out, "%s_bucket{le=%q} %d\n", seconds, strconv.FormatFloat(bound, 'g', -1, 64), total)
	}
	if m.buckets != nil {
		total += m.buckets[len(durationBuckets)]
	}
	fmt.Fprintf(out, "%[1]s_bucket{le=\"+Inf\"} %[2]d\n%[1]s_sum %[3]g\n%[1]s_count %[2]d\n", seconds, total, m.sum)
}

// serveHealth serves /healthz and /metrics on TASKGATE_HOST, if TASKGATE_WORKER_PORT is set. A port that is taken is
// reported, and the worker works on without it. What it answers ends the server.
func (w *Worker) serveHealth() func() {
	if w.cfg.Port < 0 {
		return func() {}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(w.cfg.Host, strconv.Itoa(w.cfg.Port)))
	if err != nil {
		w.log.Error("health_not_served", "port", w.cfg.Port, "error", err.Error())
		return func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(out http.ResponseWriter, _ *http.Request) {
		// a database that is away is no reason to restart a worker that waits for it
		status, database := "ok", "ok"
		if w.isDraining() {
			status = "draining"
		}
		if w.state.isLost() {
			database = "lost"
		}
		out.Header().Set("content-type", "application/json")
		fmt.Fprintf(out, `{"status": %q, "database": %q, "worker_id": %q, "running": %d}`, status, database, w.id, w.book.count())
	})
	mux.HandleFunc("GET /metrics", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("content-type", "text/plain; version=0.0.4; charset=utf-8")
		w.writeMetrics(out)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10}
	go func() { _ = server.Serve(listener) }()
	w.log.Info("health_listening", "url", "http://"+listener.Addr().String())
	return func() { _ = server.Close() }
}
