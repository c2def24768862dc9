package worker

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// link is the process's second connection. It listens, renews leases, and writes outcomes and checkpoints: all of
// them short, so that none waits behind a claim, which may stand in line for the lock for a second. The first
// connection (claimer) claims and does the upkeep. There is no third.
type link struct {
	w      *Worker
	buffer buffer

	mu        sync.Mutex
	kicked    bool               // there is work
	interrupt context.CancelFunc // ends the wait for a notification
	requests  []*request
	renewAt   time.Duration
	closing   bool

	number   atomic.Int32 // by which this process is woken alone; 0: it does not listen
	attended atomic.Bool  // by the claimer, which writes outcomes along with its next claim

	client calls // only run's goroutine touches it
	done   chan struct{}
}

// request is a short call for a running attempt, such as a checkpoint: fenced by its token, it answers done or stale.
type request struct {
	call  func(context.Context, calls) (string, error)
	reply chan error
}

const (
	signOfLife = 20 * time.Second
	sparePause = 5 * time.Millisecond // whoever was called first should have the task by then
)

func newLink(w *Worker) *link { return &link{w: w, done: make(chan struct{})} }

func (l *link) settle(s settlement) {
	l.buffer.put(s)
	if l.attended.Load() {
		poke(l.w.book.freed)
		return
	}
	l.kick()
}

// ask makes one short call, and waits for its answer. It fails with ErrLeaseLost if that is stale (or cancelled).
func (l *link) ask(ctx context.Context, call func(context.Context, calls) (string, error)) error {
	asked := &request{call, make(chan error, 1)}
	l.mu.Lock()
	l.requests = append(l.requests, asked)
	l.mu.Unlock()
	l.kick()
	select {
	case err := <-asked.reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kick wakes the goroutine of the link.
func (l *link) kick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kicked = true
	if l.interrupt != nil {
		l.interrupt()
		l.interrupt = nil
	}
}

// renewBy makes sure that the next renewal comes by then.
func (l *link) renewBy(at time.Duration) {
	l.mu.Lock()
	sooner := at < l.renewAt
	if sooner {
		l.renewAt = at
	}
	l.mu.Unlock()
	if sooner {
		l.kick()
	}
}

// close lets the link write what waits, say goodbye and end. ctx bounds run.
func (l *link) close() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.kick()
}

// run serves the connection until close, reconnecting with backoff; ctx ends it at once.
func (l *link) run(ctx context.Context) {
	defer close(l.done)
	defer func() {
		if l.client.conn != nil {
			closeNow(l.client.conn)
		}
	}()
	var wait backoff
	for ctx.Err() == nil {
		err := l.step(ctx)
		if err == errClosed {
			return
		}
		if err == nil {
			l.w.state.answered("link")
			wait.reset()
			continue
		}
		l.number.Store(0)
		if l.client.conn != nil {
			closeNow(l.client.conn)
			l.client.conn = nil
		}
		if l.w.mismatch(err) || ctx.Err() != nil {
			return
		}
		l.w.state.failed("link", err)
		rest(ctx, wait.pause(l.longestPause()))
	}
}

func (l *link) longestPause() time.Duration {
	if l.w.book.count() > 0 {
		return min(l.w.cfg.Lease/10, time.Second)
	}
	return 5 * time.Second
}

// step does one thing: what is most urgent first.
func (l *link) step(ctx context.Context) error {
	if l.client.conn == nil {
		return l.connect(ctx)
	}
	l.mu.Lock()
	l.kicked = false
	renewAt, closing := l.renewAt, l.closing
	requests := l.requests
	l.requests = nil
	l.mu.Unlock()
	for i, asked := range requests {
		if err := l.serve(ctx, asked); err != nil {
			l.mu.Lock()
			l.requests = append(requests[i:], l.requests...)
			l.mu.Unlock()
			return err
		}
	}
	if now() >= renewAt {
		return l.renew(ctx)
	}
	l.buffer.gather()
	if v, batch := l.buffer.take(); len(batch) > 0 {
		return l.w.write(ctx, l.client, v, batch)
	}
	if closing {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := l.client.forget(ctx, l.w.id); err != nil {
			return err
		}
		return errClosed
	}
	return l.wait(ctx, renewAt-now())
}

func (l *link) connect(ctx context.Context) error {
	client, err := l.w.open(ctx, l.notified)
	if err != nil {
		return err
	}
	l.client = client
	if !l.w.cfg.DatabasePooler {
		number, err := client.listen(ctx, l.w.types)
		if err != nil {
			return err
		}
		l.number.Store(number)
	}
	l.mu.Lock()
	l.renewAt = 0 // at once: nobody knows how long we were away
	l.mu.Unlock()
	poke(l.w.ready) // notifications may have been missed
	return nil
}

func (l *link) notified(_ *pgconn.PgConn, notice *pgconn.Notification) {
	if strings.HasSuffix(notice.Channel, "_ready") {
		poke(l.w.ready)
		return
	}
	if strings.Contains(notice.Channel, "_ready_") {
		if notice.Payload == "spare" {
			time.AfterFunc(sparePause, func() { poke(l.w.called) })
			return
		}
		poke(l.w.called)
		return
	}
	ours := false
	l.w.book.each(func(a *attempt) { ours = ours || a.task.ID == notice.Payload })
	if ours { // the renewal's answer is what counts: the notice may be of an earlier run
		l.mu.Lock()
		l.renewAt = 0
		l.mu.Unlock()
	}
}

// wait until a notification, a kick or the time is up.
func (l *link) wait(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	l.mu.Lock()
	if l.kicked {
		l.mu.Unlock()
		return nil
	}
	l.interrupt = cancel
	l.mu.Unlock()
	var err error
	if l.w.cfg.DatabasePooler {
		<-ctx.Done()
	} else {
		err = l.client.conn.WaitForNotification(ctx)
	}
	l.mu.Lock()
	l.interrupt = nil
	l.mu.Unlock()
	if err != nil && ctx.Err() != nil && !l.client.conn.IsClosed() {
		return nil
	}
	return err
}

func (l *link) serve(ctx context.Context, asked *request) error {
	ctx, cancel := context.WithTimeout(ctx, l.w.callTimeout())
	defer cancel()
	outcome, err := asked.call(ctx, l.client)
	switch {
	case err != nil && (dataError(err) || rowLocked(err)):
		asked.reply <- err
	case err != nil:
		return err
	case outcome == "stale":
		asked.reply <- ErrLeaseLost
	case outcome == "cancelled":
		asked.reply <- ErrEndedCancelled
	default:
		asked.reply <- nil
	}
	return nil
}

// rest waits, or less if ctx ends.
func rest(ctx context.Context, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	<-ctx.Done()
}
