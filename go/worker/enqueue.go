package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Querier is what Enqueue needs: a pgx.Tx of the caller's, so that the task exists if and only if the rest of the
// transaction does. A *pgx.Conn or a pool will do where there is nothing else to commit.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// NewTask is a task to enqueue.
type NewTask struct {
	// ID is the caller's own; empty takes a new UUIDv7.
	ID   string
	Type string
	// Request is marshalled to JSON; a json.RawMessage keeps its key order.
	Request any
	Options Options
}

// Options of a task; a zero value takes the default.
type Options struct {
	Priority    *int // 0 to 9, 9 first; 4 if nil
	Delay       time.Duration
	RunAt       time.Time
	StartWithin time.Duration
	Timeout     time.Duration // of one attempt
	MaxAttempts int
	Metadata    json.RawMessage
}

// Enqueued is what became of a NewTask: Exists when its id was taken, and nothing was written for it.
type Enqueued struct {
	ID     string
	Exists bool
}

// Queue is where tasks go: the zero value is the installation in schema `public`, and no tenant.
type Queue struct {
	Schema      string
	Tenant      string
	Traceparent string
}

// Enqueue writes tasks in the caller's transaction, in the default queue. See Queue.Enqueue.
func Enqueue(ctx context.Context, tx Querier, tasks ...NewTask) ([]Enqueued, error) {
	return Queue{}.Enqueue(ctx, tx, tasks...)
}

// Enqueue writes tasks in one statement, all or none, and answers one Enqueued a task, in order. Workers are
// notified when the transaction commits.
func (q Queue) Enqueue(ctx context.Context, tx Querier, tasks ...NewTask) ([]Enqueued, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	count := len(tasks)
	ids, types, requests := make([]*string, count), make([]string, count), make([]string, count)
	keep, options := make([]bool, count), make([]*string, count)
	for i, task := range tasks {
		if !taskType.MatchString(task.Type) {
			return nil, fmt.Errorf("%q is no task type: use 1 to 100 of a-z 0-9 _ . - and begin with a letter or digit", task.Type)
		}
		request, err := marshal(task.Request)
		if err != nil {
			return nil, fmt.Errorf("the request of task %d is not JSON: %w", i, err)
		}
		if task.ID != "" {
			ids[i] = &tasks[i].ID
		}
		types[i], requests[i], keep[i] = task.Type, string(request), !keepsOrder(request)
		if options[i], err = task.Options.json(); err != nil {
			return nil, fmt.Errorf("the options of task %d: %w", i, err)
		}
	}
	schema := q.Schema
	if schema == "" {
		schema = "public"
	}
	var trace *string
	if q.Traceparent != "" {
		trace = &q.Traceparent
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(sqlEnqueue, functionSchema(schema)), ids, types, requests, keep, options, q.Tenant, trace)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Enqueued, error) {
		var task Enqueued
		var outcome string
		err := row.Scan(&task.ID, &outcome)
		task.Exists = outcome == "exists"
		return task, err
	})
}

func (o Options) json() (*string, error) {
	given := map[string]any{}
	if o.Priority != nil {
		given["priority"] = *o.Priority
	}
	for name, value := range map[string]time.Duration{"delay_seconds": o.Delay, "start_within_seconds": o.StartWithin, "timeout_seconds": o.Timeout} {
		if value != 0 {
			given[name] = value.Seconds()
		}
	}
	if !o.RunAt.IsZero() {
		given["run_at"] = o.RunAt.Format(time.RFC3339Nano)
	}
	if o.MaxAttempts != 0 {
		given["max_attempts"] = o.MaxAttempts
	}
	if o.Metadata != nil {
		given["metadata"] = o.Metadata
	}
	if len(given) == 0 {
		return nil, nil
	}
	text, err := marshal(given)
	shown := string(text)
	return &shown, err
}

// keepsOrder says whether jsonb keeps this JSON's key order: it sorts the keys of an object by length in bytes, then
// by bytes (PostgreSQL's manual, 8.14). Otherwise the text is kept too: the order of properties steers a model.
func keepsOrder(text []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	type level struct {
		object, value bool // value: a key was read, its value comes
		last          string
		any           bool
	}
	var stack []level
	for {
		token, err := decoder.Token()
		if err != nil {
			return true // the end; what is no JSON the database refuses
		}
		top := len(stack) - 1
		isKey := top >= 0 && stack[top].object && !stack[top].value
		switch delim, _ := token.(json.Delim); {
		case delim == '}' || delim == ']':
			stack = stack[:top]
		case isKey:
			key := token.(string)
			l := &stack[top]
			if l.any && (len(key) < len(l.last) || len(key) == len(l.last) && key <= l.last) {
				return false
			}
			l.last, l.any, l.value = key, true, true
			continue
		default:
			if top >= 0 {
				stack[top].value = false
			}
			if delim == '{' || delim == '[' {
				stack = append(stack, level{object: delim == '{'})
			}
		}
	}
}
