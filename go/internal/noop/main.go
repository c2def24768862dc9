// Command noop is a worker whose tasks (type `noop`) do nothing: for measuring what the queue itself costs.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/taskgate/taskgate/go/worker"
)

func main() {
	cfg, err := worker.FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(worker.ExitConfig)
	}
	w := worker.New(cfg)
	w.Handle("noop", func(context.Context, *worker.Task) (any, error) { return nil, nil })
	os.Exit(w.Main())
}
