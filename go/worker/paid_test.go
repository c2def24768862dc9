package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

func TestWhatIsPaidIsKnownToTheNextAttempt(t *testing.T) {
	seen := make(chan *Paid, 10)
	r := start(t, testdb.New(t), nil, map[string]Func{
		"buy": func(ctx context.Context, task *Task) (any, error) {
			seen <- task.Paid
			if task.Paid != nil && len(task.Paid.Operation) > 4 {
				return map[string]string{"resumed": string(task.Paid.Operation)}, nil
			}
			if err := task.Intend(ctx, map[string]string{"key": "k<1>"}, false); err != nil {
				return nil, err
			}
			if err := task.SaveOperation(ctx, map[string]string{"name": "op1"}); err != nil {
				return nil, err
			}
			return nil, Retry("once more").WithAfter(0)
		},
		"refused": func(ctx context.Context, task *Task) (any, error) {
			seen <- task.Paid
			if task.Attempt == 2 {
				return "bought", nil
			}
			if err := errors.Join(task.Intend(ctx, 1, false), task.Withdraw(ctx)); err != nil {
				return nil, err
			}
			return nil, Retry("once more").WithAfter(0)
		},
		"unknown": func(ctx context.Context, task *Task) (any, error) {
			if err := task.Intend(ctx, 1, false); err != nil {
				return nil, err
			}
			return nil, Retry("nobody knows").WithAfter(0)
		},
	})
	r.submit("bought", "buy", "{}")
	if row := r.ended("bought"); row.Status != "completed" || !strings.Contains(row.Result, `op1`) || row.Attempts != 2 {
		t.Errorf("%+v", row)
	}
	if first, second := receive(t, seen), receive(t, seen); first != nil || string(second.Account) != `{"key": "k<1>"}` || second.Token == 0 {
		t.Errorf("%+v %+v", first, second)
	}
	r.submit("back", "refused", "{}")
	if row := r.ended("back"); row.Status != "completed" {
		t.Errorf("%+v", row)
	}
	if first, second := receive(t, seen), receive(t, seen); first != nil || second != nil {
		t.Errorf("%+v %+v", first, second)
	}
	r.submit("lost", "unknown", "{}")
	if row := r.ended("lost"); row.Status != "failed" || row.Error != "submit_ambiguous" || row.Attempts != 1 {
		t.Errorf("%+v", row)
	}
}

func TestAnIntentNeedsALiveToken(t *testing.T) {
	taken, found := make(chan struct{}), make(chan error, 2)
	r := start(t, testdb.New(t), nil, map[string]Func{
		"buy": func(ctx context.Context, task *Task) (any, error) {
			<-taken
			found <- task.Intend(context.WithoutCancel(ctx), 1, false)
			return nil, nil
		},
	})
	r.submit("t", "buy", "{}")
	testdb.Until(t, "its start", func() bool { return r.row("t").Status == "running" })
	r.exec(takenAway, "t")
	close(taken)
	if err := receive(t, found); !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
}

func TestUpstreamsAreReadWhenTheyAreNamed(t *testing.T) {
	r := start(t, testdb.New(t), nil, map[string]Func{
		"find": func(ctx context.Context, task *Task) (any, error) {
			found, known, err := task.FindUpstream(ctx, "new")
			if err != nil || !known {
				return nil, Retry("not there: %v", err).WithAfter(100 * time.Millisecond)
			}
			key, err := found.Key()
			return map[string]any{"found": found, "key": key, "of": task.Upstream, "model": task.Model}, err
		},
	})
	t.Setenv("KEY_OF_NEW", "k1")
	r.exec("INSERT INTO tasks (task_id, status, task_type, request, max_attempts, upstream) VALUES ('t', 'pending', 'find', '{\"model\":\"m-1\"}', 100, 'new')")
	testdb.Until(t, "a look in vain", func() bool { return r.row("t").Attempts > 0 })
	r.exec(`SELECT * FROM taskgate.apply_upstreams('[{"name":"new","api":"openai","base_url":"http://h/v1","key_env":"KEY_OF_NEW","models":["m-*","n"],"model":"m-1"}]')`)
	row := r.ended("t")
	for _, part := range []string{`"key": "k1"`, `"Models": ["m-*", "n"]`, `"BaseURL": "http://h/v1"`, `"Enabled": true`, `"of": "new"`, `"model": "m-1"`} {
		if !strings.Contains(row.Result, part) {
			t.Errorf("no %s in %+v", part, row)
		}
	}
}
