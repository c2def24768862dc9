package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"
)

// Func does what one task asks. Its result becomes the task's result as JSON; json.RawMessage is taken as it is.
// It must return soon after ctx ends; context.Cause(ctx) says why: ErrCancelled, ErrTimeout, ErrLeaseLost or
// ErrShutdown.
type Func func(ctx context.Context, task *Task) (any, error)

type registered struct {
	run         Func
	description string
	schema      json.RawMessage
	timeout     time.Duration
}

// Option describes a handler further.
type Option func(*registered)

// WithTimeout limits an attempt, instead of TASKGATE_TIMEOUT_SECONDS.
func WithTimeout(limit time.Duration) Option { return func(h *registered) { h.timeout = limit } }

// WithDescription is shown in the API's documentation.
func WithDescription(text string) Option { return func(h *registered) { h.description = text } }

// WithSchema is the JSON Schema that the API validates requests by.
func WithSchema(schema json.RawMessage) Option { return func(h *registered) { h.schema = schema } }

var taskType = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,99}$`)

// Handle registers the handler of a task type: 1 to 100 of a-z 0-9 _ . -, the first a letter or digit. A wrong
// name, or one that is registered already, is an error of the program: it panics.
func (w *Worker) Handle(name string, run Func, options ...Option) {
	if !taskType.MatchString(name) {
		panic(fmt.Sprintf("%q is no task type: use 1 to 100 of a-z 0-9 _ . - and begin with a letter or digit", name))
	}
	if _, taken := w.handlers[name]; taken {
		panic(fmt.Sprintf("a handler for %q is registered already", name))
	}
	handler := &registered{run: run}
	for _, option := range options {
		option(handler)
	}
	w.handlers[name] = handler
}
