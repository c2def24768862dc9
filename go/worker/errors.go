package worker

import (
	"errors"
	"fmt"
	"time"
)

// The errors that a handler returns on purpose. Anything else that it returns is a failed attempt, tried again
// while attempts are left.

type outcomeKind int

const (
	retryKind outcomeKind = iota
	snoozeKind
	throttledKind
	permanentKind
)

// TaskError steers what becomes of a task. Make one with Permanent, Retry, Snooze or Throttled.
type TaskError struct {
	Message string
	// Code is a stable short string for machines.
	Code string
	// Info is any JSON value, kept with the attempt (for example the provider's own answer).
	Info any
	// After is the delay; nil means exponential backoff with jitter.
	After *time.Duration
	kind  outcomeKind
	trace string // of a panic
}

func (e *TaskError) Error() string { return e.Message }

// WithCode sets the code.
func (e *TaskError) WithCode(code string) *TaskError { e.Code = code; return e }

// WithInfo sets the info.
func (e *TaskError) WithInfo(info any) *TaskError { e.Info = info; return e }

// WithAfter sets the delay before the next attempt.
func (e *TaskError) WithAfter(after time.Duration) *TaskError { e.After = &after; return e }

// Outcome names what the error does: "retry", "snoozed", "throttled" or "permanent".
func (e *TaskError) Outcome() string {
	return [...]string{"retry", "snoozed", "throttled", "permanent"}[e.kind]
}

// Permanent ends the task as failed at once: it can never succeed as it stands.
func Permanent(format string, args ...any) *TaskError {
	return &TaskError{Message: fmt.Sprintf(format, args...), Code: "permanent", kind: permanentKind}
}

// Retry fails this attempt; it is tried again while attempts are left, after a backoff unless WithAfter says when.
func Retry(format string, args ...any) *TaskError {
	return &TaskError{Message: fmt.Sprintf(format, args...), Code: "handler_error", kind: retryKind}
}

// Snooze gives the task back for a while. It costs no attempt.
func Snooze(after time.Duration, format string, args ...any) *TaskError {
	return &TaskError{Message: fmt.Sprintf(format, args...), Code: "snoozed", After: &after, kind: snoozeKind}
}

// Throttled is a Snooze because a provider said "too many": bounded in all by TASKGATE_MAX_THROTTLE_SECONDS.
func Throttled(after time.Duration, format string, args ...any) *TaskError {
	return &TaskError{Message: fmt.Sprintf(format, args...), Code: "throttled", After: &after, kind: throttledKind}
}

// ErrLeaseLost says that the task was recovered or taken by somebody else: nothing this attempt writes counts.
var ErrLeaseLost = errors.New("the task is no longer ours")

// ErrEndedCancelled is an ErrLeaseLost of a task that nobody else has: it was cancelled, and has ended. Who has just
// learnt of an operation at the provider cancels it.
var ErrEndedCancelled = fmt.Errorf("%w: it ended as cancelled", ErrLeaseLost)

// errStale is the lease that the database itself called lost.
var errStale = fmt.Errorf("%w: stale", ErrLeaseLost)

// errNoSlot is a task that was claimed for a slot that did not come free.
var errNoSlot = errors.New("no slot")

// Why a handler's context ended; see context.Cause.
var (
	ErrCancelled = errors.New("cancelled")
	ErrTimeout   = errors.New("timeout")
	ErrShutdown  = errors.New("shutdown")
)

// SchemaMismatch says that the database's schema is outside this program's range.
type SchemaMismatch struct{ Message string }

func (e *SchemaMismatch) Error() string { return e.Message }

// ConfigError says which setting is wrong.
type ConfigError struct{ Message string }

func (e *ConfigError) Error() string { return e.Message }
