package handlers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"sync"

	"github.com/taskgate/taskgate/go/worker"
)

// memory is a Backing that keeps what a worker would write, in the order in which it was written.
type memory struct {
	mu         sync.Mutex
	events     []string // intend, save, withdraw, store
	account    json.RawMessage
	operation  json.RawMessage
	checkpoint json.RawMessage
	progress   []string
	stored     map[string][]byte
	kinds      map[string]string
	upstreams  map[string]worker.Upstream
	stale      bool
}

func newMemory() *memory { return &memory{stored: map[string][]byte{}, kinds: map[string]string{}} }

func (m *memory) note(event string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, event)
	if m.stale {
		return worker.ErrLeaseLost
	}
	return nil
}

func (m *memory) Keep(_ context.Context, checkpoint, progress []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if checkpoint != nil {
		m.checkpoint = checkpoint
	}
	if progress != nil {
		m.progress = append(m.progress, string(progress))
	}
	return nil
}

func (m *memory) Intend(_ context.Context, account []byte, _ bool) error {
	m.account, m.operation = account, nil
	return m.note("intend")
}

func (m *memory) SaveOperation(ctx context.Context, operation []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	m.operation = operation
	m.mu.Unlock()
	return m.note("save")
}

func (m *memory) Withdraw(context.Context) error {
	m.account = nil
	return m.note("withdraw")
}

func (m *memory) StoreMedia(_ context.Context, _ *worker.Task, name string, from io.Reader, mime string) (worker.MediaRef, error) {
	content, err := io.ReadAll(from)
	if err != nil {
		return worker.MediaRef{}, err
	}
	m.mu.Lock()
	m.stored[name], m.kinds[name] = content, mime
	m.mu.Unlock()
	sum := sha256.Sum256(content)
	return worker.MediaRef{SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(content)), MIME: mime, URL: "/tasks/t/media/" + name}, m.note("store")
}

func (m *memory) Upstream(_ context.Context, name string) (worker.Upstream, bool, error) {
	found, known := m.upstreams[name]
	return found, known, nil
}
