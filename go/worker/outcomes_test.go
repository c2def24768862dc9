package worker

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// Errors and values whose methods panic.
type (
	unlike    struct{}
	unsaid    struct{}
	unwritten struct{}
)

func (unlike) Error() string                   { return "unlike" }
func (unlike) Is(error) bool                   { panic("like nothing") }
func (unsaid) Error() string                   { panic("no words") }
func (unwritten) MarshalJSON() ([]byte, error) { panic("no JSON") }

// What a handler returns, and the row that comes of it.
func TestOutcomes(t *testing.T) {
	type result struct {
		B string `json:"b"`
		A any    `json:"a"`
	}
	handlers := map[string]Func{
		"value":     func(context.Context, *Task) (any, error) { return result{"<é>", []int{1}}, nil },
		"null":      func(context.Context, *Task) (any, error) { return nil, nil },
		"raw":       func(_ context.Context, task *Task) (any, error) { return task.Request, nil },
		"nul":       func(context.Context, *Task) (any, error) { return "a\x00b\xff", nil },
		"surrogate": func(context.Context, *Task) (any, error) { return json.RawMessage(`"\ud83d"`), nil },
		"number":    func(context.Context, *Task) (any, error) { return json.RawMessage("1e400000"), nil },
		"function":  func(context.Context, *Task) (any, error) { return func() {}, nil },
		"huge":      func(context.Context, *Task) (any, error) { return strings.Repeat("x", 2<<20), nil },
		"permanent": func(context.Context, *Task) (any, error) {
			return nil, Permanent("never").WithCode("no_good").WithInfo(map[string]int{"n": 1})
		},
		"error":  func(context.Context, *Task) (any, error) { return nil, errors.New("odd\x00 thing") },
		"panic":  func(context.Context, *Task) (any, error) { panic("oh") },
		"unlike": func(context.Context, *Task) (any, error) { return nil, unlike{} },
		"unsaid": func(context.Context, *Task) (any, error) { return nil, unsaid{} },
		"uninform": func(context.Context, *Task) (any, error) {
			return nil, Permanent("never").WithInfo(unwritten{})
		},
		"unwritten": func(context.Context, *Task) (any, error) { return unwritten{}, nil },
		"goexit":    func(context.Context, *Task) (any, error) { runtime.Goexit(); return nil, nil },
		"backwards": func(context.Context, *Task) (any, error) { return nil, Snooze(-time.Second, "not now") },
		"decode":    func(_ context.Context, task *Task) (any, error) { var n int; return n, task.Decode(&n) },
		"timeout":   func(ctx context.Context, _ *Task) (any, error) { <-ctx.Done(); return nil, ctx.Err() },
		"twice": func(_ context.Context, task *Task) (any, error) {
			if task.Attempt == 1 {
				return nil, Retry("once more").WithAfter(0)
			}
			return task.Attempt, nil
		},
	}
	want := map[string]row{
		"value":     {"completed", `{"a": [1], "b": "<é>"}`, "", "", 1, 0},
		"null":      {"completed", "null", "", "", 1, 0},
		"raw":       {"completed", `{"x": 1}`, "", "", 1, 0},
		"nul":       {"completed", "\"a\ufffdb\ufffd\"", "", "", 1, 0},
		"surrogate": {"completed", "\"\ufffd\"", "", "", 1, 0},
		"number":    {"failed", "", "the outcome could not be written: ", "outcome_refused", 1, 0},
		"unlike":    {"failed", "", "cannot be described", "handler_error", 1, 0},
		"uninform":  {"failed", "", "cannot be described", "handler_error", 1, 0},
		"unsaid":    {"failed", "", "PANIC", "handler_error", 1, 0},
		"unwritten": {"failed", "", "panic: no JSON", "handler_error", 1, 0},
		"goexit":    {"failed", "", "without returning", "handler_error", 1, 0},
		"backwards": {"failed", "", "a snooze needs a duration of 0 or more: not now", "handler_error", 1, 0},
		"function":  {"failed", "", "the handler's result is not JSON", "result_not_json", 1, 0},
		"huge":      {"failed", "", "TASKGATE_MAX_RESULT_BYTES", "result_too_large", 1, 0},
		"permanent": {"failed", "", "never", "no_good", 1, 0},
		"error":     {"failed", "", "odd\ufffd thing", "handler_error", 1, 0},
		"panic":     {"failed", "", "panic: oh", "handler_error", 1, 0},
		"decode":    {"failed", "", "does not fit the handler", "invalid_request", 1, 0},
		"timeout":   {"failed", "", "longer than 0.2 s", "timeout", 1, 0},
		"twice":     {"completed", "2", "", "", 2, 0},
	}
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Slots = 20 }, handlers)
	for name := range want {
		most := 1
		if name == "twice" {
			most = 2
		}
		r.exec(`INSERT INTO tasks (task_id, status, task_type, request, max_attempts, timeout_seconds) VALUES ($1, 'pending', $1, '{"x": 1}', $2, $3)`,
			name, most, map[bool]any{true: 0.2}[name == "timeout"])
	}
	for name, wanted := range want {
		have := r.ended(name)
		if name == "twice" {
			have.Error, have.Code = "", "" // of the first attempt
		}
		if !strings.Contains(have.Error, wanted.Error) || wanted.Error == "" && have.Error != "" {
			t.Errorf("%s: error %q, want %q", name, have.Error, wanted.Error)
		}
		have.Error, wanted.Error = "", ""
		if have != wanted {
			t.Errorf("%s: have %+v, want %+v", name, have, wanted)
		}
	}
	if n := value[int](r, "SELECT (error_info ->> 'n')::int FROM tasks WHERE task_id = 'permanent'"); n != 1 {
		t.Errorf("info is %d", n)
	}
}

func TestAPanicIsLoggedWithItsTraceback(t *testing.T) {
	r := start(t, testdb.New(t), nil, map[string]Func{
		"panic": func(context.Context, *Task) (any, error) { panic("oh") },
		"error": func(context.Context, *Task) (any, error) { return nil, errors.New("odd") },
	})
	for _, name := range []string{"panic", "error"} {
		r.exec("INSERT INTO tasks (task_id, status, task_type, request, max_attempts) VALUES ($1, 'pending', $1, '{}', 1)", name)
		r.ended(name)
	}
	found := map[string]any{}
	testdb.Until(t, "both lines", func() bool {
		for _, line := range r.log.events("task_failed") {
			found[line["task_id"].(string)] = line["traceback"]
		}
		return len(found) == 2
	})
	if text, _ := found["panic"].(string); !strings.Contains(text, "outcomes_test.go") {
		t.Errorf("the traceback is %v", found["panic"])
	}
	if found["error"] != nil {
		t.Errorf("a returned error has the traceback %v", found["error"])
	}
}

func TestSnoozeCheckpointAndProgress(t *testing.T) {
	held := make(chan struct{})
	r := start(t, testdb.New(t), nil, map[string]Func{"steps": func(ctx context.Context, task *Task) (any, error) {
		if task.Checkpoint == nil {
			if err := task.SaveCheckpoint(ctx, map[string]int{"page": 3}); err != nil {
				return nil, err
			}
			return nil, Snooze(10*time.Millisecond, "not yet")
		}
		if err := task.ReportProgress(ctx, 0.5); err != nil {
			return nil, err
		}
		<-held
		return task.Checkpoint, nil
	}})
	r.submit("s", "steps", "{}")
	testdb.Until(t, "progress", func() bool {
		return value[int](r, "SELECT count(*) FROM taskgate.task_attempts WHERE task_id = 's' AND progress = '0.5'") == 1
	})
	close(held)
	if have := r.ended("s"); have.Result != `{"page": 3}` || have.Attempts != 1 || have.Releases != 1 {
		t.Errorf("%+v", have)
	}
}

func TestThrottlingEnds(t *testing.T) {
	dsn := testdb.New(t)
	r := start(t, dsn, nil, map[string]Func{"busy": func(context.Context, *Task) (any, error) {
		return nil, Throttled(400*time.Millisecond, "slow down")
	}})
	r.exec("UPDATE taskgate.settings SET max_throttle = interval '1 second'")
	r.submit("b", "busy", "{}")
	if have := r.ended("b"); have.Status != "failed" || have.Code != "throttled" || have.Error != "slow down" || have.Releases != 3 {
		t.Errorf("%+v", have)
	}
}

func TestTypesThatAreNotServedAreLeftAlone(t *testing.T) {
	same := func(context.Context, *Task) (any, error) { return 1, nil }
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Types = []string{"mine"} }, map[string]Func{"mine": same, "switched_off": same})
	r.submit("no", "unknown", "{}")
	r.submit("off", "switched_off", "{}")
	r.submit("yes", "mine", "{}")
	r.ended("yes")
	if a, b := r.row("no"), r.row("off"); a.Status != "pending" || b.Status != "pending" {
		t.Errorf("%+v %+v", a, b)
	}
}

func TestUnknownTypeIsAConfigError(t *testing.T) {
	cfg := settings("postgresql://u@127.0.0.1:1/d")
	cfg.Types = []string{"absent"}
	w := newWorker(cfg, NewLogger(&lines{}, "json", "info"))
	w.Handle("mine", nil)
	var wrong *ConfigError
	if err := w.Run(context.Background()); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "absent") {
		t.Errorf("have %v", err)
	}
}

func TestWhatCannotBeWrittenIsHeldUntilItsLeaseEnds(t *testing.T) {
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Lease = 2 * time.Second }, map[string]Func{
		"number": func(context.Context, *Task) (any, error) { return json.RawMessage("1e400000"), nil },
	})
	r.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this' USING ERRCODE = '22000'; END $$`)
	r.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON tasks FOR EACH ROW WHEN (new.error_code = 'outcome_refused') EXECUTE FUNCTION refuse()`)
	r.exec("INSERT INTO tasks (task_id, status, task_type, request, max_attempts) VALUES ('n', 'pending', 'number', '{}', 2)")
	if have := r.ended("n"); have.Code != "worker_timeout" || have.Attempts != 2 {
		t.Errorf("%+v", have)
	}
	if failed := r.log.events("settle_failed"); len(failed) != 2 {
		t.Errorf("given up %d times in 2 attempts: %v", len(failed), failed)
	}
	testdb.Until(t, "a free slot", func() bool { return r.w.book.count() == 0 })
}
