package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"strings"
	"time"
)

// MediaRef is what a result keeps of a stored file: its bytes are at url of the API.
type MediaRef struct {
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	MIME   string `json:"mime"`
	URL    string `json:"url"`
}

var (
	mediaName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	mediaMIME = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]{0,49}/[a-z0-9][a-z0-9.+-]{0,48}$`) // as the table has it
)

const (
	uploadsAtOnce = 4           // of a process: each holds a piece in memory
	uploadAlive   = time.Minute // an upload that goes elsewhere tells the database so often that it goes on
)

// StoreMedia keeps a file of the task under a name, replacing one of the same name: streamed, never whole in memory.
// The file lives as long as the task's row. It fails with ErrLeaseLost if the task is no longer ours, with a Retry of
// code media_store if the store does not take it, and with a Permanent error of code media_too_large beyond
// TASKGATE_MEDIA_MAX_STORE_BYTES; errors of the reader pass as they are.
func (t *Task) StoreMedia(ctx context.Context, name string, from io.Reader, mime string) (MediaRef, error) {
	switch {
	case !mediaName.MatchString(name):
		return MediaRef{}, fmt.Errorf("%q is no name for a file: use 1 to 100 of A-Z a-z 0-9 . _ - and begin with a letter or digit", name)
	case !mediaMIME.MatchString(mime):
		return MediaRef{}, fmt.Errorf("%q is no media type, such as video/mp4", mime)
	case t.Backing == nil:
		return MediaRef{}, errNoWorker
	}
	return t.Backing.StoreMedia(ctx, t, name, from, mime)
}

// mediaStore is where files go: the chunks of the database, or a place beside it that the database only indexes.
type mediaStore struct {
	place mediaPlace
	db    *mediaLink
	most  int64
	turns chan struct{}
}

// mediaPlace takes the bytes of one upload.
type mediaPlace interface {
	// name identifies the store in the database: no query, no trailing slash.
	name() string
	// pieceBytes is the size of every piece but the last.
	pieceBytes() int
	// begin starts an object; its key is chosen here, and empty for the database's own chunks.
	begin(ctx context.Context) (upload, error)
	remove(ctx context.Context, object string) error
}

// upload gets the content in pieces.
type upload interface {
	object() string
	write(ctx context.Context, blob int64, piece []byte) error
	finish(ctx context.Context) error
	abort()
}

func (m *mediaStore) store(ctx context.Context, task *Task, name string, from io.Reader, mime string) (MediaRef, error) {
	select {
	case m.turns <- struct{}{}:
		defer func() { <-m.turns }()
	case <-ctx.Done():
		return MediaRef{}, context.Cause(ctx)
	}
	m.db.open()
	defer m.db.close()
	target, err := m.place.begin(ctx)
	if err != nil {
		return MediaRef{}, m.failed(ctx, err)
	}
	blob, err := m.db.begin(ctx, m.place.name(), target.object())
	if err != nil {
		target.abort()
		return MediaRef{}, m.failed(ctx, err)
	}
	measured := &measured{from: from, sum: sha256.New(), most: m.most}
	outcome, err := m.send(ctx, task, name, blob, target, measured, mime)
	if err != nil || outcome != "done" {
		target.abort()
		m.discard(blob, target.object())
	}
	switch {
	case err != nil:
		return MediaRef{}, m.failed(ctx, err)
	case outcome == "stale":
		return MediaRef{}, ErrLeaseLost
	case outcome != "done" && outcome != "shared":
		return MediaRef{}, Retry("the file could not be stored: the store answered %s", outcome).WithCode("media_store")
	}
	return MediaRef{measured.hex(), measured.count, mime, "/tasks/" + percent(task.ID) + "/media/" + name}, nil
}

func (m *mediaStore) send(ctx context.Context, task *Task, name string, blob int64, target upload, from *measured, mime string) (string, error) {
	piece := make([]byte, m.place.pieceBytes())
	alive := time.Now()
	for {
		count, err := io.ReadFull(from, piece)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return "", readError{err}
		}
		if from.wrong != nil { // ReadFull takes an unexpected end of the source for its own
			return "", readError{from.wrong}
		}
		if count > 0 {
			if err := target.write(ctx, blob, piece[:count]); err != nil {
				return "", err
			}
		}
		if err != nil {
			break
		}
		if target.object() != "" && time.Since(alive) > uploadAlive {
			if err := m.db.append(ctx, blob, 0, nil); err != nil {
				return "", err
			}
			alive = time.Now()
		}
	}
	if err := target.finish(ctx); err != nil {
		return "", err
	}
	return m.db.attach(ctx, task.ID, task.Token, name, blob, from.hex(), from.count, mime)
}

// discard forgets an upload that came to nothing; one that cannot be is collected later.
func (m *mediaStore) discard(blob int64, object string) {
	ctx, cancel := context.WithTimeout(context.Background(), hurry)
	defer cancel()
	if object != "" && m.place.remove(ctx, object) != nil {
		return
	}
	_ = m.db.discard(ctx, blob)
}

func (m *mediaStore) failed(ctx context.Context, err error) error {
	var read readError
	var steer *TaskError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the upload was stopped: %w", context.Cause(ctx))
	case errors.As(err, &read):
		return read.error
	case errors.As(err, &steer):
		return steer
	}
	return Retry("the file could not be stored: %v", err).WithCode("media_store")
}

// readError is an error of the content's source.
type readError struct{ error }

// measured counts and hashes what it reads.
type measured struct {
	from  io.Reader
	sum   hash.Hash
	count int64
	most  int64
	wrong error
}

func (m *measured) Read(into []byte) (int, error) {
	count, err := m.from.Read(into)
	m.count += int64(count)
	m.sum.Write(into[:count])
	if m.count > m.most {
		err = Permanent("the file is larger than %d bytes (TASKGATE_MEDIA_MAX_STORE_BYTES)", m.most).WithCode("media_too_large")
	}
	if err != nil && err != io.EOF {
		m.wrong = err
	}
	return count, err
}

func (m *measured) hex() string { return hex.EncodeToString(m.sum.Sum(nil)) }

// percent encodes a task's id as a part of a path.
func percent(id string) string {
	var out strings.Builder
	for _, char := range []byte(id) {
		if char >= 'a' && char <= 'z' || char >= 'A' && char <= 'Z' || char >= '0' && char <= '9' || strings.IndexByte("-._~", char) >= 0 {
			out.WriteByte(char)
		} else {
			fmt.Fprintf(&out, "%%%02X", char)
		}
	}
	return out.String()
}
