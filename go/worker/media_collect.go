package worker

import (
	"context"
	"strconv"
)

const collectBatch = 20 // of media_collect's own

// collectMedia deletes stored files that no task refers to any more, whenever a purge has seen some: apart from the claims,
// for a store may be slow. Any number of workers may do so at once.
func (w *Worker) collectMedia(ctx context.Context) {
	for {
		select {
		case <-w.idleMedia:
		case <-ctx.Done():
			return
		}
		count, err := w.media.collect(ctx)
		if err != nil && ctx.Err() == nil {
			w.log.Warn("media_store_failed", "error", err.Error())
		}
		if count > 0 {
			w.log.Info("media_collected", "count", count)
		}
	}
}

// stores are those that this worker deletes from: the database, and its own.
func (m *mediaStore) stores() []string {
	stores := []string{"postgres"}
	if name := m.place.name(); name != "postgres" {
		stores = append(stores, name)
	}
	return stores
}

func (m *mediaStore) collect(ctx context.Context) (total int, err error) {
	m.db.open()
	defer m.db.close()
	for _, store := range m.stores() {
		for count := collectBatch; count == collectBatch; total += count {
			var rows [][][]byte
			if rows, err = m.db.rows(ctx, sqlMediaCollect, text(store)); err != nil {
				return total, err
			}
			for _, row := range rows {
				if row[1] == nil {
					continue // of the database: gone already
				}
				if err = m.place.remove(ctx, string(row[1])); err != nil {
					return total, err
				}
				blob, _ := strconv.ParseInt(string(row[0]), 10, 64)
				if err = m.db.discard(ctx, blob); err != nil {
					return total, err
				}
			}
			count = len(rows)
		}
	}
	return total, nil
}
