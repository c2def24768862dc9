package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"time"
)

// Task is one attempt at one task, as a handler sees it.
type Task struct {
	ID   string
	Type string
	// Request is the request's JSON, its keys in the caller's order.
	Request json.RawMessage
	// Attempt is 1 for the first attempt; snoozes and releases do not count.
	Attempt     int
	MaxAttempts int
	// Timeout is how long this attempt may take in all.
	Timeout time.Duration
	// Token is the fencing token of this claim.
	Token    int64
	Tenant   string
	Metadata json.RawMessage
	// Checkpoint is the last value given to SaveCheckpoint by any attempt, nil at first.
	Checkpoint  json.RawMessage
	Traceparent string

	// Upstream names the provider that the task goes to; empty means that of the worker's environment.
	Upstream string
	// Model is the model that the task counts for in limits.
	Model string
	// Paid is what the last attempt that asked for something paid has left; nil if none did.
	Paid *Paid
	// Backing is the worker that runs the task.
	Backing Backing

	waited time.Duration
	again  bool
}

// Decode reads the request into v. Its error is permanent, with code `invalid_request`.
func (t *Task) Decode(v any) error {
	if err := json.Unmarshal(t.Request, v); err != nil {
		return Permanent("the request does not fit the handler: %v", err).WithCode("invalid_request")
	}
	return nil
}

// SaveCheckpoint keeps a JSON value for the attempts that follow. It fails with ErrLeaseLost if the task is no
// longer ours.
func (t *Task) SaveCheckpoint(ctx context.Context, value any) error {
	text, err := marshal(value)
	if err != nil {
		return err
	}
	if err := t.keep(ctx, text, nil); err != nil {
		return err
	}
	t.Checkpoint = text
	return nil
}

// ReportProgress shows a JSON value (a fraction, a stage) as `progress` of the task.
func (t *Task) ReportProgress(ctx context.Context, value any) error {
	text, err := marshal(value)
	if err != nil {
		return err
	}
	return t.keep(ctx, nil, text)
}

func (t *Task) keep(ctx context.Context, checkpoint, progress []byte) error {
	if t.Backing == nil {
		return nil
	}
	return t.Backing.Keep(ctx, checkpoint, progress)
}

// marshal is the JSON of a value, fit to be stored as jsonb, and with <, > and & as they are.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return storable(bytes.TrimSuffix(out.Bytes(), []byte("\n"))), nil
}
