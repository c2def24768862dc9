// Command span is a worker whose tasks last as long as their requests say, and answer when they ran and where. Its
// argument is `--types` and what it serves, of `span` and `other`.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

type request struct {
	Seconds float64 `json:"seconds"`
	Until   string  `json:"until"` // the path of a file that will be there
	Die     bool    `json:"die"`   // kills the process
}

func main() {
	types := flag.String("types", "span,other", "")
	flag.Parse()
	cfg, err := worker.FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(worker.ExitConfig)
	}
	cfg.Types = strings.Split(*types, ",")
	w := worker.New(cfg)
	w.Handle("span", span)
	w.Handle("other", span)
	os.Exit(w.Main())
}

func span(ctx context.Context, task *worker.Task) (any, error) {
	begun := time.Now()
	var r request
	if err := json.Unmarshal(task.Request, &r); err != nil {
		return nil, err
	}
	if r.Die {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return nil, err
		}
	}
	for ended := false; !ended; {
		pause := time.Duration(r.Seconds * float64(time.Second))
		if _, err := os.Stat(r.Until); r.Until == "" || err == nil {
			ended = true
		} else {
			pause = 5 * time.Millisecond
		}
		if pause == 0 {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return map[string]any{"begun": seconds(begun), "ended": seconds(time.Now()), "worker": os.Getpid()}, nil
}

func seconds(at time.Time) float64 { return float64(at.UnixNano()) / 1e9 }
