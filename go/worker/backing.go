package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
)

// Backing is what a worker does for a handler. A test of a handler may lend its own to a Task.
type Backing interface {
	// Keep saves a checkpoint or progress, as JSON; nil leaves it as it is.
	Keep(ctx context.Context, checkpoint, progress []byte) error
	// Intend notes, before the send, that something paid is about to be asked for, and with whose account. retry says
	// that it may be asked for again if nobody learns what became of it.
	Intend(ctx context.Context, account []byte, retry bool) error
	// SaveOperation notes the provider's handle, right after its answer.
	SaveOperation(ctx context.Context, operation []byte) error
	// Withdraw takes the intent back: the provider surely has not accepted.
	Withdraw(ctx context.Context) error
	StoreMedia(ctx context.Context, task *Task, name string, from io.Reader, mime string) (MediaRef, error)
	// Upstream is the row of that name, if there is one.
	Upstream(ctx context.Context, name string) (Upstream, bool, error)
}

// Paid is what an earlier attempt has left: an intent, and the operation if its handle is known.
type Paid struct {
	Operation json.RawMessage `json:"operation"`
	Account   json.RawMessage `json:"account"`
	Token     int64           `json:"token"`
}

var errNoWorker = errors.New("the task has no worker behind it")

// Intend notes that a paid call is about to be sent; see Backing. It fails with ErrLeaseLost if the task is no longer
// ours: then nothing may be sent.
func (t *Task) Intend(ctx context.Context, account any, retry bool) error {
	text, err := marshal(account)
	if err != nil {
		return err
	}
	if t.Backing == nil {
		return errNoWorker
	}
	return t.Backing.Intend(ctx, text, retry)
}

// SaveOperation notes the handle of what was paid for, so that whoever has the task next resumes it.
func (t *Task) SaveOperation(ctx context.Context, operation any) error {
	text, err := marshal(operation)
	if err != nil {
		return err
	}
	if t.Backing == nil {
		return errNoWorker
	}
	return t.Backing.SaveOperation(ctx, text)
}

// Withdraw takes an intent back.
func (t *Task) Withdraw(ctx context.Context) error {
	if t.Backing == nil {
		return errNoWorker
	}
	return t.Backing.Withdraw(ctx)
}

// FindUpstream is the upstream of that name, and whether there is one.
func (t *Task) FindUpstream(ctx context.Context, name string) (Upstream, bool, error) {
	if t.Backing == nil {
		return Upstream{}, false, errNoWorker
	}
	return t.Backing.Upstream(ctx, name)
}

// lent is the Backing of a task that a worker runs. Its calls are fenced by the token.
type lent struct {
	w    *Worker
	task *Task
}

func (l lent) Keep(ctx context.Context, checkpoint, progress []byte) error {
	return l.w.link.ask(ctx, func(ctx context.Context, client calls) (string, error) {
		return client.checkpoint(ctx, l.task.ID, l.task.Token, checkpoint, progress)
	})
}

func (l lent) Intend(ctx context.Context, account []byte, retry bool) error {
	return l.w.link.ask(ctx, func(ctx context.Context, client calls) (string, error) {
		return client.intend(ctx, l.task.ID, l.task.Token, account, retry)
	})
}

func (l lent) SaveOperation(ctx context.Context, operation []byte) error {
	return l.w.link.ask(ctx, func(ctx context.Context, client calls) (string, error) {
		return client.saveOperation(ctx, l.task.ID, l.task.Token, operation)
	})
}

func (l lent) Withdraw(ctx context.Context) error {
	return l.w.link.ask(ctx, func(ctx context.Context, client calls) (string, error) {
		return client.withdraw(ctx, l.task.ID, l.task.Token)
	})
}

func (l lent) StoreMedia(ctx context.Context, task *Task, name string, from io.Reader, mime string) (MediaRef, error) {
	return l.w.media.store(ctx, task, name, from, mime)
}

func (l lent) Upstream(ctx context.Context, name string) (Upstream, bool, error) {
	return l.w.upstreams.find(ctx, name)
}
