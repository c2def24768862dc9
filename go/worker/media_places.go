package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// newMediaStore reads TASKGATE_MEDIA_STORE. It fails with a ConfigError for one that is none.
func newMediaStore(w *Worker) (mediaStore, error) {
	db := &mediaLink{w: w}
	store := mediaStore{db: db, most: cmp.Or(w.cfg.MediaMaxStoreBytes, maxStoreBytes), turns: make(chan struct{}, uploadsAtOnce)}
	address := w.cfg.MediaStore
	parsed, err := url.Parse(address)
	switch {
	case address == "" || address == "postgres":
		store.place = chunksPlace{db}
	case err == nil && parsed.Scheme == "file" && parsed.Host == "" && strings.HasPrefix(parsed.Path, "/") && parsed.Path != "/":
		store.place = folderPlace{filepath.Clean(parsed.Path)}
	case err == nil && parsed.Scheme == "s3":
		store.place, err = newBucketPlace(parsed)
	default:
		err = &ConfigError{"TASKGATE_MEDIA_STORE must be postgres, file:///path or s3://bucket/prefix?endpoint=URL&region=REGION"}
	}
	return store, err
}

const (
	maxStoreBytes = 2 << 30 // where a program's own Config does not say
	chunkBytes    = 256 << 10
	// chunksAtOnce go with one call.
	chunksAtOnce = 2
)

// chunksPlace is the database itself.
type chunksPlace struct{ db *mediaLink }

func (p chunksPlace) name() string                          { return "postgres" }
func (p chunksPlace) pieceBytes() int                       { return chunksAtOnce * chunkBytes }
func (p chunksPlace) begin(context.Context) (upload, error) { return &chunksUpload{db: p.db}, nil }
func (p chunksPlace) remove(context.Context, string) error  { return nil }

type chunksUpload struct {
	db   *mediaLink
	next int
}

func (u *chunksUpload) object() string               { return "" }
func (u *chunksUpload) finish(context.Context) error { return nil }
func (u *chunksUpload) abort()                       {}

func (u *chunksUpload) write(ctx context.Context, blob int64, piece []byte) error {
	var chunks [][]byte
	for len(piece) > 0 {
		size := min(len(piece), chunkBytes)
		chunks, piece = append(chunks, piece[:size]), piece[size:]
	}
	err := u.db.append(ctx, blob, u.next, chunks)
	u.next += len(chunks)
	return err
}

// folderPlace is a directory. An object is a file of a random name, which is never renamed.
type folderPlace struct{ path string }

func (p folderPlace) name() string    { return "file://" + p.path }
func (p folderPlace) pieceBytes() int { return chunkBytes }

func (p folderPlace) begin(context.Context) (upload, error) {
	key := randomKey()
	path := filepath.Join(p.path, filepath.FromSlash(key))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	return &fileUpload{file, key}, err
}

func (p folderPlace) remove(_ context.Context, object string) error {
	err := os.Remove(filepath.Join(p.path, filepath.FromSlash(object)))
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

type fileUpload struct {
	file *os.File
	key  string
}

func (u *fileUpload) object() string { return u.key }
func (u *fileUpload) abort()         { _ = u.file.Close() }

func (u *fileUpload) write(_ context.Context, _ int64, piece []byte) error {
	_, err := u.file.Write(piece)
	return err
}

// finish makes the file durable: the row that says it is complete comes after it.
func (u *fileUpload) finish(context.Context) error {
	if err := u.file.Sync(); err != nil {
		return err
	}
	if err := u.file.Close(); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(u.file.Name()))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// randomKey is a new object's name: in a folder of a hundred-odd, so that none grows large.
func randomKey() string {
	var random [16]byte
	_, _ = rand.Read(random[:])
	name := hex.EncodeToString(random[:])
	return name[:2] + "/" + name
}
