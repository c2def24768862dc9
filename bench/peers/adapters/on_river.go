// River over pgx, with the fetch settings and the number of workers of its own benchmark.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type noopArgs struct {
	Sent float64 `json:"sent"`
}

func (noopArgs) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noopArgs]
	ran       atomic.Int64
	latencies bool
	count     int64
}

func (w *noopWorker) Work(_ context.Context, job *river.Job[noopArgs]) error {
	at := now()
	number := w.ran.Add(1)
	if w.latencies {
		say(map[string]any{"event": "started", "ms": (at - job.Args.Sent) * 1000})
	}
	if number == 1 {
		say(map[string]any{"event": "first", "at": at})
	}
	if number >= w.count {
		say(map[string]any{"event": "ran", "at": at, "jobs": number})
	}
	return nil
}

func now() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// The harness reads lines that begin with {"event"; encoding/json sorts the keys of a map, so "at" would come first.
func say(sign map[string]any) {
	event := sign["event"]
	delete(sign, "event")
	rest, _ := json.Marshal(sign)
	fmt.Printf("{\"event\":%q,%s\n", event, rest[1:])
}

func number(name string, otherwise float64) float64 {
	if value, err := strconv.ParseFloat(os.Getenv(name), 64); err == nil {
		return value
	}
	return otherwise
}

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, verb string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("PEER_DSN"))
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	count := int(number("PEER_COUNT", 0))
	switch verb {
	case "setup":
		migrator, err := rivermigrate.New(driver, nil)
		if err != nil {
			return err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	case "work":
		return work(ctx, driver, count)
	}
	client, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		return err
	}
	begun := time.Now()
	if verb == "bulk" {
		err = bulk(ctx, client, count, int(number("PEER_CHUNK", 1000)))
	} else {
		pause := time.Duration(0)
		if verb == "trickle" {
			pause = time.Duration(number("PEER_PAUSE", 0.02) * float64(time.Second))
		}
		err = submit(ctx, client, count, pause)
	}
	say(map[string]any{"event": "submitted", "seconds": time.Since(begun).Seconds()})
	return err
}

func submit(ctx context.Context, client *river.Client[pgx.Tx], count int, pause time.Duration) error {
	for range count {
		if _, err := client.Insert(ctx, noopArgs{Sent: now()}, nil); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

func bulk(ctx context.Context, client *river.Client[pgx.Tx], count, chunk int) error {
	for done := 0; done < count; {
		many := make([]river.InsertManyParams, min(chunk, count-done))
		for i := range many {
			many[i] = river.InsertManyParams{Args: noopArgs{Sent: now()}}
		}
		if _, err := client.InsertManyFast(ctx, many); err != nil {
			return err
		}
		done += len(many)
	}
	return nil
}

func work(ctx context.Context, driver *riverpgxv5.Driver, count int) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{latencies: os.Getenv("PEER_LATENCIES") == "1", count: int64(count)})
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: int(number("PEER_SLOTS", 1000))}},
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-stop.Done()
	soft, cancelSoft := context.WithTimeout(ctx, 5*time.Second)
	defer cancelSoft()
	return client.Stop(soft)
}
