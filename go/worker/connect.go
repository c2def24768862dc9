package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
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

const (
	firstLostPause, longestLostPause = 10 * time.Second, time.Minute

	lostHint  = "it goes on trying; if this lasts, check DATABASE_URL"
	wrongHint = "check DATABASE_URL; it goes on trying"
)

// databaseState says that the database is gone, again at growing pauses while it stays so, and once that it is back.
// Both connections report to it.
type databaseState struct {
	mu    sync.Mutex
	log   *slog.Logger
	place []any // where the database is: fields of the log, without the password
	lost  map[string]struct{}
	since time.Time

	sayAt     time.Time
	pause     time.Duration
	saidWrong bool // since it is gone
}

func (s *databaseState) failed(who string, err error) { s.failedAt(time.Now(), who, err) }

func (s *databaseState) failedAt(at time.Time, who string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone, wrong := len(s.lost) > 0, wrongPlace(err)
	s.lost[who] = struct{}{}
	switch {
	case !gone:
		s.since, s.pause, s.saidWrong = at, firstLostPause, false
	case !at.Before(s.sayAt):
		s.pause = min(2*s.pause, longestLostPause)
	case s.saidWrong || !wrong: // what the server says is wrong is said at once
		return
	}
	s.sayAt = at.Add(s.pause)
	s.saidWrong = s.saidWrong || wrong
	level, hint := slog.LevelWarn, lostHint
	if wrong {
		level, hint = slog.LevelError, wrongHint
	}
	fields := append([]any{"error", err.Error()}, s.place...)
	s.log.Log(context.Background(), level, "database_lost", append(fields, "seconds", round(at.Sub(s.since)), "hint", hint)...)
}

// wrongPlace tells a login or a database that the server does not know from trouble that passes.
func wrongPlace(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (strings.HasPrefix(refused.Code, "28") || refused.Code == "3D000")
}

// placeFields are where a configuration leads: several hosts and their ports are separated by commas.
func placeFields(config *pgconn.Config) []any {
	hosts, ports := []string{config.Host}, []string{strconv.Itoa(int(config.Port))}
	for _, each := range config.Fallbacks {
		port := strconv.Itoa(int(each.Port))
		if last := len(hosts) - 1; each.Host != hosts[last] || port != ports[last] { // the same without TLS
			hosts, ports = append(hosts, each.Host), append(ports, port)
		}
	}
	return []any{"host", strings.Join(hosts, ","), "port", strings.Join(ports, ","), "database", config.Database, "user", config.User}
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
