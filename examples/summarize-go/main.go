// A worker with a handler of its own: `go run .` in this folder, with DATABASE_URL set. summarize.py is the same in Python.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

type request struct {
	Text  string `json:"text"`
	Words int    `json:"words"`
}

type summary struct {
	Summary string `json:"summary"`
	Dropped int    `json:"dropped"`
}

// summarize keeps the first words of a text, 20 if the request does not say how many.
func summarize(ctx context.Context, task *worker.Task) (any, error) {
	var asked request
	if err := task.Decode(&asked); err != nil {
		return nil, err
	}
	words := strings.Fields(asked.Text)
	switch {
	case len(words) == 0:
		return nil, worker.Permanent("there is nothing to summarize").WithCode("empty_text")
	case words[0] == "later" && task.Checkpoint == nil: // what a busy provider would make us do
		if err := task.SaveCheckpoint(ctx, map[string]int{"seen": len(words)}); err != nil {
			return nil, err
		}
		return nil, worker.Snooze(100*time.Millisecond, "not yet")
	}
	if asked.Words <= 0 {
		asked.Words = 20
	}
	if err := task.ReportProgress(ctx, 0.5); err != nil {
		return nil, err
	}
	kept := min(asked.Words, len(words))
	return summary{Summary: strings.Join(words[:kept], " "), Dropped: len(words) - kept}, nil
}

func main() {
	cfg, err := worker.FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(worker.ExitConfig)
	}
	w := worker.New(cfg)
	w.Handle("summarize", summarize, worker.WithDescription("The first words of a text."))
	os.Exit(w.Main())
}
