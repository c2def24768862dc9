package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Upstream is a named provider: a row of the table `upstreams`. Its key is on the worker's machine only.
type Upstream struct {
	Name            string
	API             string // openai, gemini, vertex or interactions
	BaseURL         string
	KeyEnv, KeyFile string
	Models          []string
	Model           string // when the task names none
	Project         string
	Location        string
	CredentialsFile string
	Enabled         bool
}

// Key reads the upstream's key; empty if it has none. A key that is named but is not there is an error.
func (u Upstream) Key() (string, error) {
	switch {
	case u.KeyFile != "":
		content, err := os.ReadFile(u.KeyFile)
		if err != nil {
			return "", fmt.Errorf("the key of upstream %q cannot be read: %w", u.Name, err)
		}
		return strings.TrimSpace(string(content)), nil
	case u.KeyEnv != "":
		key := strings.TrimSpace(os.Getenv(u.KeyEnv))
		if key == "" {
			return "", fmt.Errorf("the key of upstream %q is not here: set %s for this worker", u.Name, u.KeyEnv)
		}
		return key, nil
	}
	return "", nil
}

const (
	upstreamsEvery = time.Minute
	upstreamsPause = time.Second // between two looks for a name that is not known
)

// upstreamList is what the worker knows of the table. It is read when first asked for, and when it is a minute old: a
// worker whose tasks name no upstream never reads it.
type upstreamList struct {
	link *link

	mu     sync.Mutex
	byName map[string]Upstream
	readAt time.Time
}

func (l *upstreamList) find(ctx context.Context, name string) (Upstream, bool, error) {
	l.mu.Lock() // held while it is read: who comes second needs the same answer
	defer l.mu.Unlock()
	found, known := l.byName[name]
	age := time.Since(l.readAt)
	if l.byName != nil && age < upstreamsEvery && (known || age < upstreamsPause) {
		return found, known, nil
	}
	if err := l.read(ctx); err != nil {
		if known { // the database is away: what was true a minute ago has to do
			return found, known, nil
		}
		return Upstream{}, false, err
	}
	found, known = l.byName[name]
	return found, known, nil
}

func (l *upstreamList) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*l.link.w.callTimeout())
	defer cancel()
	var rows []Upstream
	err := l.link.ask(ctx, func(ctx context.Context, client calls) (string, error) {
		var err error
		rows, err = client.upstreams(ctx)
		return "", err
	})
	if err != nil {
		return err
	}
	l.byName, l.readAt = make(map[string]Upstream, len(rows)), time.Now()
	for _, each := range rows {
		l.byName[each.Name] = each
	}
	return nil
}

func (c calls) upstreams(ctx context.Context) ([]Upstream, error) {
	rows, err := c.rows(ctx, sqlUpstreams)
	if err != nil {
		return nil, err
	}
	out := make([]Upstream, len(rows))
	for i, row := range rows {
		var models []string
		if err := json.Unmarshal(row[5], &models); err != nil {
			return nil, err
		}
		out[i] = Upstream{
			Name: string(row[0]), API: string(row[1]), BaseURL: string(row[2]), KeyEnv: string(row[3]), KeyFile: string(row[4]), Models: models,
			Model: string(row[6]), Project: string(row[7]), Location: string(row[8]), CredentialsFile: string(row[9]), Enabled: string(row[10]) == "t",
		}
	}
	return out, nil
}
