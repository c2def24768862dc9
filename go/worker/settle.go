package worker

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

type verb int

const (
	verbComplete verb = iota
	verbFail
	verbRelease
)

func (v verb) String() string { return [...]string{"complete", "fail", "release"}[v] }

// settlement is the outcome of one attempt, on its way to the database.
type settlement struct {
	attempt *attempt
	verb    verb
	result  []byte
	text    string // of the error, or the reason of a release
	code    string
	info    []byte
	retry   bool
	delay   *time.Duration // nil: the database's backoff
	took    time.Duration
	waited  bool          // for a slot, in vain: it has not begun
	quiet   bool          // its end was told in the log before
	trace   string        // of a panic
	pause   time.Duration // to the next try, when somebody else holds the row
	refused bool          // the database did not take the value: a plain failure stands in for it
}

func (s settlement) of() *attempt     { return s.attempt }
func (s settlement) message() string  { return s.text }
func (s settlement) codeText() string { return s.code }
func (s settlement) bytes() int       { return len(s.result) + len(s.info) + len(s.text) }

func (s *settlement) giveBack(code, reason string) {
	none := time.Duration(0)
	s.verb, s.code, s.text, s.delay = verbRelease, code, reason, &none
}

func (s *settlement) steer(e *TaskError) {
	s.code, s.text, s.delay, s.trace = plain(e.Code), plain(e.Message), e.After, e.trace
	if e.Info != nil {
		if info, err := marshal(e.Info); err == nil {
			s.info = info
		}
	}
	if s.delay != nil && *s.delay < 0 {
		s.delay = nil
	}
	switch e.kind {
	case permanentKind:
		s.verb = verbFail
	case retryKind:
		s.verb, s.retry = verbFail, true
	case snoozeKind, throttledKind:
		if e.After == nil || *e.After < 0 {
			s.verb, s.retry, s.code, s.delay = verbFail, true, "handler_error", nil
			s.text = plain("a snooze needs a duration of 0 or more: " + e.Message)
			return
		}
		after := max(*e.After, minSnooze)
		s.verb, s.delay = verbRelease, &after
		if e.kind == throttledKind {
			// the code by which the database bounds the time in all; a finer one is in the message and the info
			s.code = "throttled"
		}
	}
}

// A snooze costs no attempt: nothing but minSnooze keeps one from coming again and again at full speed.
const minSnooze = 100 * time.Millisecond

// An outcome whose row somebody else holds is tried again after firstPause, doubling to longestPause.
const firstPause, longestPause = 50 * time.Millisecond, time.Second

// A batch is bounded in tasks and in bytes, so that one large result does not hold up many.
const (
	batchTasks = 1000
	batchBytes = 8 << 20
	// so many make a write worth its cost: it does not wait for more
	gatherTasks = 100
	// outcomes of one burst follow each other more closely
	burstPause = 50 * time.Microsecond
)

// buffer gathers settlements while a batch is being written: the write under way makes the next batch.
type buffer struct {
	mu       sync.Mutex
	waiting  [3][]settlement
	starting atomic.Bool  // claimed tasks are being started
	writing  atomic.Int32 // outcomes of the write under way
}

func (b *buffer) put(s settlement) {
	b.mu.Lock()
	b.waiting[s.verb] = append(b.waiting[s.verb], s)
	b.mu.Unlock()
}

// take is the next batch of one verb; empty when nothing waits.
func (b *buffer) take() (verb, []settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for v := range b.waiting {
		queue := b.waiting[v]
		if len(queue) == 0 {
			continue
		}
		count, bytes := 0, 0
		for count < len(queue) && count < batchTasks && (count == 0 || bytes+queue[count].bytes() <= batchBytes) {
			bytes += queue[count].bytes()
			count++
		}
		if count == len(queue) {
			b.waiting[v] = nil
		} else {
			b.waiting[v] = queue[count:]
		}
		return verb(v), queue[:count:count]
	}
	return 0, nil
}

// putBack returns a batch whose write failed to the head of its queue.
func (b *buffer) putBack(v verb, batch []settlement) {
	b.mu.Lock()
	b.waiting[v] = append(batch, b.waiting[v]...)
	b.mu.Unlock()
}

func (b *buffer) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting[0]) + len(b.waiting[1]) + len(b.waiting[2])
}

// gather waits while a burst of outcomes comes in, so that they share a write. A lone one goes at once.
func (b *buffer) gather() {
	runtime.Gosched()
	before, count := 1, b.count()
	for count > 0 && count < gatherTasks && (count > before || b.starting.Load()) {
		for end := time.Now().Add(burstPause); time.Now().Before(end); { // a sleep takes a millisecond at least
			runtime.Gosched()
		}
		before, count = count, b.count()
	}
}

// ending is how many outcomes are being written or about to be: so many slots come free soon.
func (b *buffer) ending() int { return b.count() + int(b.writing.Load()) }

// write sends one batch, and heeds the answer.
func (w *Worker) write(ctx context.Context, client calls, v verb, batch []settlement) error {
	limited, cancel := context.WithTimeout(ctx, w.callTimeout())
	w.link.buffer.writing.Store(int32(len(batch)))
	call := settle(v, batch)
	rows, err := client.rows(limited, call.sql, call.params...)
	w.link.buffer.writing.Store(0)
	cancel()
	return w.written(ctx, client, v, batch, answer{rows, err})
}

// written heeds the answer to a batch. An error that is the batch's own splits it, and a plain failure stands in for
// the one bad value; any other error is the connection's, and the batch is kept.
func (w *Worker) written(ctx context.Context, client calls, v verb, batch []settlement, got answer) error {
	found, err := verdicts(got.rows, got.err)
	switch {
	case err == nil:
		w.confirm(batch, found)
		return nil
	case dataError(err) && len(batch) > 1:
		for i := range batch {
			if err := w.write(ctx, client, v, batch[i:i+1:i+1]); err != nil {
				w.link.buffer.putBack(v, batch[i+1:])
				return err
			}
		}
		return nil
	case dataError(err):
		w.refuse(batch[0], err)
		return nil
	case rowLocked(err): // a deadlock, or a lock on the whole table
		for _, s := range batch {
			if !w.putAside(s) {
				w.book.remove(s.attempt.task.Token)
			}
		}
		return nil
	}
	w.link.buffer.putBack(v, batch)
	return err
}

// refuse puts a plain failure, with nothing of the handler's own in it, in the place of an outcome that the database
// does not take.
func (w *Worker) refuse(s settlement, err error) {
	if s.refused {
		w.log.Error("settle_failed", "task_id", s.attempt.task.ID, "task_type", s.attempt.task.Type, "token", s.attempt.task.Token, "error", err.Error())
		w.hold(s.attempt)
		return
	}
	w.link.settle(settlement{attempt: s.attempt, verb: verbFail, took: s.took, code: "outcome_refused", refused: true,
		retry: s.verb == verbRelease || s.retry, text: plain("the outcome could not be written: " + err.Error())})
}

// hold keeps a token that cannot be settled among those held, and renews it no more: given up, it would come with the
// next claim, to be run and refused again. The database takes it back a second after its lease; one that was restarted
// waits for a lease from then.
func (w *Worker) hold(a *attempt) {
	w.book.mu.Lock()
	a.lost = true
	left := a.endsAt - now()
	w.book.mu.Unlock()
	time.AfterFunc(left+w.cfg.Lease+2*time.Second, func() { w.book.remove(a.task.Token) })
}

// putAside tries an outcome again later, because somebody else's open transaction holds its row. Nobody else can
// have the task meanwhile, so it is kept for as long again as its lease. False when it is given up.
func (w *Worker) putAside(s settlement) bool {
	w.book.mu.Lock()
	over := now() > s.attempt.endsAt+w.cfg.Lease
	w.book.mu.Unlock()
	if over {
		w.log.Error("settle_failed", "task_id", s.attempt.task.ID, "task_type", s.attempt.task.Type, "token", s.attempt.task.Token,
			"error", "somebody holds its row, and its lease is over")
		return false
	}
	s.pause = min(max(firstPause, 2*s.pause), longestPause)
	time.AfterFunc(s.pause, func() { w.link.settle(s) })
	return true
}

// confirm tells what the database answered, and frees the slots.
func (w *Worker) confirm(batch []settlement, found []verdict) {
	outcomes := make(map[int64]string, len(found))
	for _, each := range found {
		outcomes[each.token] = each.outcome
	}
	tokens := make([]int64, 0, len(batch))
	for _, s := range batch {
		token := s.attempt.task.Token
		if outcomes[token] == "busy" {
			if w.putAside(s) {
				continue
			}
		} else {
			w.report(s, outcomes[token])
		}
		tokens = append(tokens, token)
	}
	w.book.remove(tokens...)
}

func (w *Worker) report(s settlement, outcome string) {
	task := s.attempt.task
	who := []any{"task_id", task.ID, "task_type", task.Type, "token", task.Token}
	switch {
	case outcome != "done" && outcome != "already":
		w.metrics.settled("refused", s.took)
		if !s.quiet {
			w.log.Warn("result_refused", "task_id", task.ID, "token", task.Token, "verb", s.verb.String())
		}
	case s.verb == verbComplete:
		w.metrics.settled("completed", s.took)
		w.log.Debug("task_completed", append(who, "attempt", task.Attempt, "seconds", round(s.took))...)
	case s.code == "cancelled":
		w.metrics.settled("cancelled", s.took)
		w.log.Info("task_cancelled", append(who, "seconds", round(s.took))...)
	case s.verb == verbFail:
		again := s.retry && task.Attempt < task.MaxAttempts
		w.metrics.settled("failed", s.took)
		what := append(who, "attempt", task.Attempt, "seconds", round(s.took), "code", s.code, "error", s.text, "retry", again)
		if s.trace != "" {
			what = append(what, "traceback", s.trace)
		}
		w.log.Warn("task_failed", what...)
	case s.waited:
		w.metrics.settled("released", s.took)
		w.log.Debug("task_released", append(who, "code", s.code, "reason", s.text)...)
	default:
		w.metrics.settled("released", s.took)
		if s.code == "released" || s.code == "lease_lost" {
			w.released.Add(1)
		}
		w.log.Info("task_released", append(who, "code", s.code, "delay_seconds", round(*s.delay))...)
	}
}
