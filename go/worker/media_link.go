package worker

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// mediaLink is the connection for files, apart from the others: outcomes and leases do not wait behind megabytes. It
// stands while an upload goes on. Each call is one short transaction, and is repeated until the caller's context ends
// when the database was away, or somebody else held the row.
type mediaLink struct {
	w *Worker

	users  sync.Mutex
	active int

	mu     sync.Mutex // one call at a time
	client calls
}

func (m *mediaLink) open() {
	m.users.Lock()
	m.active++
	m.users.Unlock()
}

func (m *mediaLink) close() {
	m.users.Lock()
	defer m.users.Unlock()
	if m.active--; m.active > 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop()
}

func (m *mediaLink) drop() {
	if m.client.conn != nil {
		closeNow(m.client.conn)
		m.client.conn = nil
	}
}

func (m *mediaLink) call(ctx context.Context, sql string, params ...param) (string, error) {
	var wait backoff
	for {
		rows, err := m.rows(ctx, sql, params...)
		switch {
		case err == nil && len(rows) == 0:
			return "", errors.New("the database answered no row")
		case err == nil:
			return string(rows[0][0]), nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case dataError(err):
			return "", err
		}
		rest(ctx, wait.pause(2*time.Second))
		if ctx.Err() != nil {
			return "", errors.Join(context.Cause(ctx), err)
		}
	}
}

// rows is one try. A connection that failed is given up.
func (m *mediaLink) rows(ctx context.Context, sql string, params ...param) ([][][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, m.w.callTimeout())
	defer cancel()
	if m.client.conn == nil {
		client, err := m.w.open(limited, nil)
		if err != nil {
			return nil, err
		}
		m.client = client
	}
	rows, err := m.client.rows(limited, sql, params...)
	if err != nil && (m.client.conn.IsClosed() || !dataError(err) && !rowLocked(err)) {
		m.drop()
	}
	return rows, err
}

func (m *mediaLink) begin(ctx context.Context, store, object string) (int64, error) {
	key := text(object)
	if object == "" {
		key = literal(nil)
	}
	found, err := m.call(ctx, sqlMediaBegin, text(store), key)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(found, 10, 64)
}

// append writes chunks from number n on; none of them says that the upload lives.
func (m *mediaLink) append(ctx context.Context, blob int64, n int, chunks [][]byte) error {
	answer, err := m.call(ctx, sqlMediaAppend, number(blob), number(n), binaryForm(array(byteaOID, chunks, nil)))
	if err == nil && answer != "done" {
		err = Retry("the upload took too long and was given up by the store").WithCode("media_store")
	}
	return err
}

func (m *mediaLink) attach(ctx context.Context, id string, token int64, name string, blob int64, sum string, bytes int64, mime string) (string, error) {
	return m.call(ctx, sqlMediaAttach, text(id), number(token), text(name), number(blob), text(sum), number(bytes), text(mime))
}

func (m *mediaLink) discard(ctx context.Context, blob int64) error {
	_, err := m.rows(ctx, sqlMediaDiscard, number(blob))
	return err
}
