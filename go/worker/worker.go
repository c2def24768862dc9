// Package worker claims tasks from the taskgate database, runs them with the handlers of this program and writes
// what became of them. The rules live in the database's functions; see src/taskgate/protocol/PROTOCOL.md.
//
//	cfg, err := worker.FromEnvironment()
//	w := worker.New(cfg)
//	w.Handle("summarize", func(ctx context.Context, t *worker.Task) (any, error) { … })
//	os.Exit(w.Main())
package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Worker runs tasks. Make one with New, register handlers, then call Run or Main, once.
type Worker struct {
	cfg      Config
	handlers map[string]*registered
	types    []string
	log      *slog.Logger

	id, host string
	pid      int
	margin   time.Duration
	database *pgconn.Config

	book  *book
	link  *link
	state *databaseState

	upstreams upstreamList
	media     mediaStore
	metrics   metrics
	ready     chan struct{} // there may be something to claim: every worker was told
	called    chan struct{} // the same, and this worker was chosen
	idleMedia chan struct{} // there are stored files that no task refers to

	base      context.Context // of every handler
	draining  chan struct{}
	drainOnce sync.Once
	atOnce    chan struct{} // stop at once
	nowOnce   sync.Once
	startOnce sync.Once
	fatal     atomic.Pointer[SchemaMismatch]
	released  atomic.Int64
}

// New makes a worker. It connects to nothing yet.
func New(cfg Config) *Worker {
	log := NewLogger(os.Stderr, cfg.LogFormat, cfg.LogLevel)
	for name, words := range cfg.slips {
		log.Warn("setting_unknown", "setting", name, "error", words)
	}
	return newWorker(cfg, log)
}

func newWorker(cfg Config, log *slog.Logger) *Worker {
	host, _ := os.Hostname()
	var random [4]byte
	_, _ = rand.Read(random[:])
	w := &Worker{
		cfg: cfg, handlers: make(map[string]*registered), log: log,
		host: host, pid: os.Getpid(), margin: leaseMargin(cfg.Lease), book: newBook(max(cfg.Slots, 1), cfg.ClaimAhead),
		ready: make(chan struct{}, 1), called: make(chan struct{}, 1), idleMedia: make(chan struct{}, 1), draining: make(chan struct{}), atOnce: make(chan struct{}),
	}
	w.id = fmt.Sprintf("%s:%d:%s", host, w.pid, hex.EncodeToString(random[:]))
	w.state = &databaseState{log: w.log, lost: make(map[string]struct{})}
	w.link = newLink(w)
	w.upstreams.link = w.link
	return w
}

// ID is unique for this run of this process.
func (w *Worker) ID() string { return w.id }

// Drain asks Run to claim no more, finish what runs within the grace period, and return.
func (w *Worker) Drain() { w.drainOnce.Do(func() { close(w.draining) }) }

// StopNow asks Run to stop everything at once; unfinished tasks are given back if that takes no time.
func (w *Worker) StopNow() {
	w.Drain()
	w.nowOnce.Do(func() { close(w.atOnce) })
}

func (w *Worker) isDraining() bool {
	select {
	case <-w.draining:
		return true
	default:
		return false
	}
}

// Run works until ctx ends or Drain is called, then drains. It fails with ConfigError or SchemaMismatch.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.prepare(); err != nil {
		return err
	}
	hard, stop := context.WithCancel(context.Background())
	defer stop()
	w.base = hard
	defer w.serveHealth()()
	go w.link.run(hard)
	go w.watch(hard)
	go w.tidyMemory(hard)
	go w.collectMedia(hard)
	claiming := make(chan struct{})
	go func() {
		defer close(claiming)
		(&claimer{w: w}).run(hard)
	}()
	select {
	case <-ctx.Done():
		w.Drain()
	case <-w.draining:
	}
	if mismatch := w.fatal.Load(); mismatch != nil {
		w.log.Error("schema_mismatch", "error", mismatch.Message)
	} else {
		w.log.Info("draining", "running", w.book.count(), "grace_seconds", w.cfg.Grace.Seconds())
	}
	w.finish(claiming)
	w.log.Info("worker_stopped", "worker_id", w.id, "released", w.released.Load())
	if mismatch := w.fatal.Load(); mismatch != nil {
		return mismatch
	}
	return nil
}

func (w *Worker) prepare() error {
	if err := w.cfg.check(); err != nil {
		return err
	}
	database, err := databaseConfig(w.cfg)
	if err != nil {
		return err
	}
	w.database = database
	w.state.place = placeFields(database)
	if w.media, err = newMediaStore(w); err != nil {
		return err
	}
	for name := range w.handlers {
		if len(w.cfg.Types) == 0 || slices.Contains(w.cfg.Types, name) {
			w.types = append(w.types, name)
		}
	}
	slices.Sort(w.types)
	for _, name := range w.cfg.Types {
		if _, known := w.handlers[name]; !known {
			return &ConfigError{fmt.Sprintf("no handler for task type %q: this worker has %s", name, strings.Join(w.names(), ", "))}
		}
	}
	if len(w.types) == 0 {
		return &ConfigError{"this worker has no handler: register one with Handle"}
	}
	return nil
}

func (w *Worker) names() []string {
	names := make([]string, 0, len(w.handlers))
	for name := range w.handlers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *Worker) sayStarted() {
	w.startOnce.Do(func() {
		w.log.Info("worker_started", "worker_id", w.id, "version", Version, "slots", w.cfg.Slots, "types", w.types)
	})
}

// mismatch notes an error that ends the worker: a schema outside this program's range.
func (w *Worker) mismatch(err error) bool {
	var wrong *SchemaMismatch
	if !errors.As(err, &wrong) {
		return false
	}
	w.fatal.CompareAndSwap(nil, wrong)
	w.Drain()
	return true
}

// callTimeout bounds one short call; a connection that does not answer in time is given up.
func (w *Worker) callTimeout() time.Duration {
	return min(max(w.cfg.Lease/3, time.Second), 20*time.Second)
}
