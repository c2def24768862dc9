// Command noop is a worker whose tasks do nothing: for measuring what the queue itself costs. Its arguments name the
// types that it serves, of `noop` and `stamp`; without any it serves both.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

func main() {
	cfg, err := worker.FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(worker.ExitConfig)
	}
	cfg.Types = os.Args[1:]
	w := worker.New(cfg)
	w.Handle("noop", func(context.Context, *worker.Task) (any, error) { return nil, nil })
	w.Handle("stamp", func(context.Context, *worker.Task) (any, error) {
		return map[string]int64{"at": time.Now().UnixNano()}, nil // when the handler started
	})
	os.Exit(w.Main())
}
