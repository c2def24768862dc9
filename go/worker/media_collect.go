package worker

import (
	"context"
	"strconv"
	"time"
)

// collectEvery is how often a worker looks for stored files that no task refers to any more, with jitter. Any number
// of workers may do so at once.
const (
	collectEvery = time.Minute
	collectBatch = 20 // of media_collect's own
)

func (w *Worker) collectMedia(ctx context.Context) {
	for rest(ctx, jitter(collectEvery, 0.5, 1.5)); ctx.Err() == nil; rest(ctx, jitter(collectEvery, 0.5, 1.5)) {
		if w.isDraining() || w.state.isLost() {
			continue
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

// collect deletes what is in the database, and in this worker's own store.
func (m *mediaStore) collect(ctx context.Context) (total int, err error) {
	m.db.open()
	defer m.db.close()
	stores := []string{"postgres"}
	if name := m.place.name(); name != "postgres" {
		stores = append(stores, name)
	}
	for _, store := range stores {
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
