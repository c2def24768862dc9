package worker

import (
	"context"
	"sync"
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
	quiet   bool // its end was told in the log before
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
	s.code, s.text, s.delay = plain(e.Code), plain(e.Message), e.After
	if e.Info != nil {
		if info, err := marshal(e.Info); err == nil {
			s.info = info
		}
	}
	switch e.kind {
	case permanentKind:
		s.verb = verbFail
	case retryKind:
		s.verb, s.retry = verbFail, true
	case snoozeKind:
		s.verb = verbRelease
	case throttledKind:
		// the code by which the database bounds the time in all; a finer one is in the message and the info
		s.verb, s.code = verbRelease, "throttled"
	}
}

// A batch is bounded in tasks and in bytes, so that one large result does not hold up many.
const (
	batchTasks = 1000
	batchBytes = 8 << 20
)

// buffer gathers settlements while a batch is being written: the write under way makes the next batch.
type buffer struct {
	mu      sync.Mutex
	waiting [3][]settlement
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

func (b *buffer) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting[0])+len(b.waiting[1])+len(b.waiting[2]) == 0
}

// write sends one batch. An error that is the batch's own splits it, and the one bad value becomes a permanent
// failure; any other error is the connection's, and the batch is kept.
func (w *Worker) write(ctx context.Context, client calls, v verb, batch []settlement) error {
	found, err := w.send(ctx, client, v, batch)
	switch {
	case err == nil:
		w.confirm(batch, found)
		return nil
	case dataError(err) && len(batch) > 1, rowLocked(err) && len(batch) > 1:
		for i := range batch {
			if err := w.write(ctx, client, v, batch[i:i+1:i+1]); err != nil {
				w.link.buffer.putBack(v, batch[i+1:])
				return err
			}
		}
		return nil
	case dataError(err):
		bad := settlement{attempt: batch[0].attempt, verb: verbFail, took: batch[0].took, code: "result_not_storable",
			text: plain("the database cannot store the result: " + err.Error())}
		if v == verbFail && batch[0].code == bad.code { // not even the words: nothing is left to try
			bad.text = "the database cannot store the result"
		}
		w.link.buffer.put(bad)
		return nil
	case rowLocked(err): // somebody's open transaction: the others go first
		w.link.later(v, batch[0])
		return nil
	}
	w.link.buffer.putBack(v, batch)
	return err
}

func (w *Worker) send(ctx context.Context, client calls, v verb, batch []settlement) ([]verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, w.callTimeout())
	defer cancel()
	switch v {
	case verbComplete:
		return client.complete(ctx, batch)
	case verbFail:
		return client.fail(ctx, batch)
	}
	return client.release(ctx, batch)
}

// confirm tells what the database answered, and frees the slots.
func (w *Worker) confirm(batch []settlement, found []verdict) {
	outcomes := make(map[int64]string, len(found))
	for _, each := range found {
		outcomes[each.token] = each.outcome
	}
	tokens := make([]int64, len(batch))
	for i, s := range batch {
		tokens[i] = s.attempt.task.Token
		w.report(s, outcomes[tokens[i]])
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
		w.log.Warn("task_failed", append(who, "attempt", task.Attempt, "seconds", round(s.took), "code", s.code, "error", s.text, "retry", again)...)
	default:
		w.metrics.settled("released", s.took)
		if s.code == "released" || s.code == "lease_lost" {
			w.released.Add(1)
		}
		w.log.Info("task_released", append(who, "code", s.code, "delay_seconds", round(*s.delay))...)
	}
}
