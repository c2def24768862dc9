package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// noise is content that cannot be compressed, the same each time.
func noise(size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
}

func sumOf(from io.Reader) string {
	sum := sha256.New()
	_, _ = io.Copy(sum, from)
	return hex.EncodeToString(sum.Sum(nil))
}

// chunks is the content that the database has of a task's file.
func (r *rig) chunks(id, name string) []byte {
	return value[[]byte](r, `SELECT coalesce((SELECT string_agg(c.data, ''::bytea ORDER BY c.n) FROM taskgate.task_media m JOIN taskgate.media_chunks c ON c.blob = m.blob
		WHERE m.task_id = $1 AND m.name = $2), ''::bytea)`, id, name)
}

func TestMediaInTheDatabase(t *testing.T) {
	sizes := map[string]int64{"empty": 0, "small": 10, "chunk": chunkBytes, "odd": 3*chunkBytes + 1, "large": 4 * chunkBytes}
	r := start(t, testdb.New(t), nil, map[string]Func{
		"store": func(ctx context.Context, task *Task) (any, error) {
			return task.StoreMedia(ctx, "a.bin", noise(sizes[task.ID]), "application/octet-stream")
		},
		"twice": func(ctx context.Context, task *Task) (any, error) {
			if _, err := task.StoreMedia(ctx, "a.bin", strings.NewReader("first"), "text/plain"); err != nil {
				return nil, err
			}
			return task.StoreMedia(ctx, "a.bin", strings.NewReader("second"), "text/plain")
		},
	})
	for id, size := range sizes {
		r.submit(id, "store", "{}")
		want := `{"sha256": "` + sumOf(noise(size)) + `"`
		row := r.ended(id)
		for _, part := range []string{want[1:], `"url": "/tasks/` + id + `/media/a.bin"`, `"mime": "application/octet-stream"`} {
			if row.Status != "completed" || !strings.Contains(row.Result, part) {
				t.Errorf("%s: %+v", id, row)
			}
		}
		if found := r.chunks(id, "a.bin"); sumOf(bytes.NewReader(found)) != sumOf(noise(size)) {
			t.Errorf("%s: %d bytes", id, len(found))
		}
	}
	r.submit("again/ä", "store", "{}") // the id is a part of the URL, and this content is there already: of no bytes
	if row := r.ended("again/ä"); !strings.Contains(row.Result, `"/tasks/again%2F%C3%A4/media/a.bin"`) {
		t.Errorf("%+v", row)
	}
	if count := value[int](r, "SELECT count(*) FROM taskgate.media_blobs WHERE bytes = 0"); count != 1 {
		t.Errorf("the same content is there %d times", count)
	}
	r.submit("twice", "twice", "{}")
	if row := r.ended("twice"); row.Status != "completed" || string(r.chunks("twice", "a.bin")) != "second" {
		t.Errorf("%+v", row)
	}
}

func TestMediaThatCannotBeStored(t *testing.T) {
	var r *rig
	taken := make(chan struct{})
	r = start(t, testdb.New(t), func(cfg *Config) { cfg.MediaMaxStoreBytes = 1 << 20 }, map[string]Func{
		"large": func(ctx context.Context, task *Task) (any, error) {
			return task.StoreMedia(ctx, "a", noise(1<<20+1), "video/mp4")
		},
		"broken": func(ctx context.Context, task *Task) (any, error) {
			_, err := task.StoreMedia(ctx, "a", io.MultiReader(noise(1000), iotest.ErrReader(io.ErrUnexpectedEOF)), "video/mp4")
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, Permanent("%v", err)
			}
			return nil, Permanent("as it was read")
		},
		"name": func(ctx context.Context, task *Task) (any, error) {
			return task.StoreMedia(ctx, "../a", strings.NewReader("x"), "video/mp4")
		},
		"mime": func(ctx context.Context, task *Task) (any, error) {
			return task.StoreMedia(ctx, "a", strings.NewReader("x"), "video/mp4; a=b")
		},
		"stale": func(ctx context.Context, task *Task) (any, error) {
			<-taken
			_, err := task.StoreMedia(ctx, "a", strings.NewReader("x"), "video/mp4")
			if !errors.Is(err, ErrLeaseLost) {
				t.Errorf("stale: %v", err)
			}
			return nil, err
		},
	})
	for id, want := range map[string]string{"large": "media_too_large", "broken": "as it was read", "name": "is no name for a file", "mime": "is no media type"} {
		r.exec("INSERT INTO tasks (task_id, status, task_type, request, max_attempts) VALUES ($1, 'pending', $1, '{}', 1)", id)
		if row := r.ended(id); row.Status != "failed" || !strings.Contains(row.Error+row.Code, want) {
			t.Errorf("%s: %+v", id, row)
		}
	}
	r.submit("stale", "stale", "{}")
	testdb.Until(t, "its start", func() bool { return r.row("stale").Status == "running" })
	r.exec(takenAway, "stale")
	close(taken)
	testdb.Until(t, "the end of its handler", func() bool { return r.w.book.count() == 0 })
	testdb.Until(t, "the deletion of what is not used", func() bool {
		return value[int](r, "SELECT count(*) FROM taskgate.media_blobs") == 0
	})
	if left := value[int](r, "SELECT (SELECT count(*) FROM taskgate.task_media) + (SELECT count(*) FROM taskgate.media_chunks)"); left != 0 {
		t.Errorf("%d rows are left", left)
	}
}

func TestMediaSurviveALostConnection(t *testing.T) {
	cut := make(chan struct{})
	r := start(t, testdb.New(t), nil, map[string]Func{
		"store": func(ctx context.Context, task *Task) (any, error) {
			// the reader waits in the middle until the connection is gone
			wait := readerFunc(func([]byte) (int, error) { <-cut; return 0, io.EOF })
			return task.StoreMedia(ctx, "a", io.MultiReader(noise(5*chunkBytes), wait, strings.NewReader("end")), "video/mp4")
		},
	})
	r.submit("t", "store", "{}")
	testdb.Until(t, "the first chunks", func() bool { return value[int](r, "SELECT count(*) FROM taskgate.media_chunks") >= 4 })
	r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	close(cut)
	if row := r.ended("t"); row.Status != "completed" {
		t.Fatalf("%+v", row)
	}
	if found := r.chunks("t", "a"); len(found) != 5*chunkBytes+3 || !bytes.HasSuffix(found, []byte("end")) {
		t.Errorf("%d bytes", len(found))
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(into []byte) (int, error) { return f(into) }

func TestMediaInAFolder(t *testing.T) {
	folder := t.TempDir()
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.MediaStore = "file://" + folder }, map[string]Func{
		"store": func(ctx context.Context, task *Task) (any, error) {
			return task.StoreMedia(ctx, "a", noise(3<<20), "video/mp4")
		},
	})
	for _, id := range []string{"one", "two"} { // the second finds the content there, and takes its own away
		r.submit(id, "store", "{}")
		if row := r.ended(id); row.Status != "completed" {
			t.Fatalf("%+v", row)
		}
	}
	object := value[string](r, "SELECT object FROM taskgate.media_blobs WHERE store = $1", "file://"+folder)
	files, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
	if len(files) != 1 || files[0] != filepath.Join(folder, object) {
		t.Fatalf("%v, %s", files, object)
	}
	content, _ := os.Open(files[0])
	defer content.Close()
	if sumOf(content) != sumOf(noise(3<<20)) {
		t.Error("another content")
	}
	r.exec("DELETE FROM tasks")
	r.exec("UPDATE taskgate.media_blobs SET idle_since = idle_since - interval '2 hours'")
	if count, err := r.w.media.collect(context.Background()); count != 1 || err != nil {
		t.Errorf("collected %d, %v", count, err)
	}
	if _, err := os.Stat(files[0]); !os.IsNotExist(err) {
		t.Error("the file is still there")
	}
}

func TestUploadsNeedLittleMemory(t *testing.T) {
	const size = 100 << 20
	done := make(chan uint64, 1)
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.MediaMaxStoreBytes = size; cfg.Timeout = 5 * time.Minute }, map[string]Func{
		"store": func(ctx context.Context, task *Task) (any, error) {
			var most uint64
			var once sync.Once
			look := readerFunc(func([]byte) (int, error) {
				once.Do(func() {
					var stats runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&stats)
					most = stats.HeapAlloc
				})
				return 0, io.EOF
			})
			ref, err := task.StoreMedia(ctx, "a", io.MultiReader(noise(size-1), look, strings.NewReader("x")), "video/mp4")
			done <- most
			return ref, err
		},
	})
	r.submit("t", "store", "{}")
	if most := receive(t, done); most > 16<<20 {
		t.Errorf("%d MiB are in memory in the middle of an upload of 100", most>>20)
	}
	if row := r.ended("t"); row.Status != "completed" {
		t.Errorf("%+v", row)
	}
}

func TestMediaStoresThatAreNone(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	for _, place := range []string{"file:", "file:///", "file://host/x", "s3:", "s3://bucket", "s3://bucket?colour=red", "ftp://x", "postgress"} {
		w := New(Config{DatabaseURL: "postgresql://x", Schema: "public", MediaStore: place})
		w.Handle("x", func(context.Context, *Task) (any, error) { return nil, nil })
		var wrong *ConfigError
		if err := w.prepare(); !errors.As(err, &wrong) || !strings.Contains(wrong.Message, "TASKGATE_MEDIA_STORE") {
			t.Errorf("%s: %v", place, err)
		}
	}
}
