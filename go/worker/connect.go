package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const connectTimeout = 10 * time.Second

// databaseConfig is the configuration of a connection: dead peers are noticed, small answers are planned without JIT.
func databaseConfig(cfg Config) (*pgconn.Config, error) {
	config, err := pgconn.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		var wrong *pgconn.ParseConfigError
		if errors.As(err, &wrong) {
			return nil, &ConfigError{"DATABASE_URL cannot be used: " + wrong.Error()} // it hides the password
		}
		return nil, &ConfigError{"DATABASE_URL cannot be used"}
	}
	if config.ConnectTimeout == 0 || config.ConnectTimeout > connectTimeout {
		config.ConnectTimeout = connectTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "taskgate worker (go)"
	}
	if !cfg.DatabasePooler { // poolers refuse parameters that they do not know
		config.RuntimeParams["jit"] = "off"
		config.RuntimeParams["lock_timeout"] = fmt.Sprintf("%dms", lockTimeout(cfg.Lease).Milliseconds())
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         boundUnacknowledged,
	}
	config.DialFunc = dialer.DialContext
	return config, nil
}

// lockTimeout bounds how long a row that somebody else holds may keep up the renewals of all others.
func lockTimeout(lease time.Duration) time.Duration {
	return min(max(lease/10, 200*time.Millisecond), 2*time.Second)
}

// dataError tells a statement that can never succeed with these values from trouble with the database.
func dataError(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || len(refused.Code) != 5 {
		return false
	}
	class := refused.Code[:2]
	return class == "22" || class == "23" || class == "54"
}

func rowLocked(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == "55P03" || refused.Code == "40P01") // lock timeout, deadlock
}

// databaseState says once that the database is gone, and once that it is back. Both connections report to it.
type databaseState struct {
	mu    sync.Mutex
	log   *slog.Logger
	lost  map[string]struct{}
	since time.Time
}

func (s *databaseState) failed(who string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lost) == 0 {
		s.since = time.Now()
		s.log.Warn("database_lost", "error", err.Error())
	}
	s.lost[who] = struct{}{}
}

func (s *databaseState) answered(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, was := s.lost[who]; !was {
		return
	}
	delete(s.lost, who)
	if len(s.lost) == 0 {
		s.log.Info("database_back", "seconds", round(time.Since(s.since)))
	}
}

func (s *databaseState) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lost) > 0
}

// open connects and checks the schema; a SchemaMismatch is final.
func (w *Worker) open(ctx context.Context, onNotification pgconn.NotificationHandler) (calls, error) {
	config := w.database.Copy()
	config.OnNotification = onNotification
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return calls{}, err
	}
	client := calls{conn: conn, schema: functionSchema(w.cfg.Schema)}
	if !w.cfg.DatabasePooler {
		client.prepared = make(map[string]*pgconn.StatementDescription)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := client.checkVersion(ctx); err != nil {
		closeNow(conn)
		return calls{}, err
	}
	return client, nil
}

// closeNow closes without waiting for a peer that may be gone.
func closeNow(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
}

// backoff is a growing pause with jitter between attempts to reach the database.
type backoff struct{ next time.Duration }

func (b *backoff) pause(most time.Duration) time.Duration {
	b.next = min(max(b.next*2, 50*time.Millisecond), most)
	return jitter(b.next, 0.5, 1)
}

func (b *backoff) reset() { b.next = 0 }
