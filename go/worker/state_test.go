package worker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

func lostState(t *testing.T, url string) (*databaseState, *lines) {
	t.Helper()
	for _, name := range []string{"PGHOST", "PGPORT", "PGUSER", "PGDATABASE"} {
		t.Setenv(name, "")
	}
	config, err := databaseConfig(settings(url))
	if err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	return &databaseState{log: NewLogger(log, "json", "info"), place: placeFields(config), lost: make(map[string]struct{})}, log
}

func TestTroubleThatLastsIsSaidAgainAtGrowingPauses(t *testing.T) {
	state, log := lostState(t, "postgresql://u:secret@h:6432/d")
	begin := time.Now()
	for after := time.Duration(0); after < 300*time.Second; after += 500 * time.Millisecond {
		state.failedAt(begin.Add(after), "link", errors.New("no"))
		state.failedAt(begin.Add(after), "claimer", errors.New("no"))
	}
	var said []any
	for _, each := range log.events("database_lost") {
		said = append(said, each["seconds"])
	}
	if want := []any{0.0, 10.0, 30.0, 70.0, 130.0, 190.0, 250.0}; !reflect.DeepEqual(said, want) {
		t.Errorf("said after %v, want %v", said, want)
	}
	first := log.events("database_lost")[0]
	for name, want := range map[string]any{
		"level": "warning", "error": "no", "host": "h", "port": "6432", "database": "d", "user": "u",
		"hint": "it goes on trying; if this lasts, check DATABASE_URL",
	} {
		if first[name] != want {
			t.Errorf("%s is %v, want %v", name, first[name], want)
		}
	}
	if strings.Contains(log.out.String(), "secret") {
		t.Error("the password is in the log")
	}
}

func TestAWrongLoginOrDatabaseIsAnErrorThatIsSaidAtOnce(t *testing.T) {
	state, log := lostState(t, "postgresql://u:secret@h/d")
	at := time.Now()
	for _, err := range []error{
		errors.New("refused"), &pgconn.PgError{Code: "28P01"}, &pgconn.PgError{Code: "28P01"}, errors.New("refused"), &pgconn.PgError{Code: "3D000"},
	} {
		state.failedAt(at, "link", err)
		at = at.Add(time.Second)
	}
	state.failedAt(at.Add(100*time.Second), "link", &pgconn.PgError{Code: "3D000"})
	var said []string
	for _, each := range log.events("database_lost") {
		said = append(said, fmt.Sprint(each["level"], " ", each["seconds"], " ", each["hint"]))
	}
	want := []string{
		"warning 0 it goes on trying; if this lasts, check DATABASE_URL",
		"error 1 check DATABASE_URL; it goes on trying",
		"error 105 check DATABASE_URL; it goes on trying",
	}
	if !reflect.DeepEqual(said, want) {
		t.Errorf("%q", said)
	}
}

func TestPlaceNamesEveryHost(t *testing.T) {
	for url, want := range map[string][]any{
		"postgresql://u:s@a,b:7/d":               {"host", "a,b", "port", "5432,7", "database", "d", "user", "u"},
		"postgresql://u:s@[::1]:7/d":             {"host", "::1", "port", "7", "database", "d", "user", "u"},
		"postgresql:///d?host=/run/pg&user=u":    {"host", "/run/pg", "port", "5432", "database", "d", "user", "u"},
		"postgresql://u:s@h/d?sslmode=prefer":    {"host", "h", "port", "5432", "database", "d", "user", "u"},
		"postgresql://u:s@a,b/d?sslmode=disable": {"host", "a,b", "port", "5432,5432", "database", "d", "user", "u"},
	} {
		if state, _ := lostState(t, url); !reflect.DeepEqual(state.place, want) {
			t.Errorf("%s: %v", url, state.place)
		}
	}
}

// A wrong password and a database that does not exist, as PostgreSQL itself says it.
func TestARefusedLoginIsSaidAsAnError(t *testing.T) {
	dsn := testdb.New(t)
	r := start(t, dsn, func(cfg *Config) { cfg.DatabaseURL = dsn + "x" }, map[string]Func{"t": func(context.Context, *Task) (any, error) { return nil, nil }})
	testdb.Until(t, "database_lost", func() bool { return len(r.log.events("database_lost")) > 0 })
	said := r.log.events("database_lost")[0]
	name := dsn[strings.LastIndex(dsn, "/")+1:] + "x"
	if said["level"] != "error" || said["database"] != name || said["hint"] != wrongHint || !strings.Contains(said["error"].(string), "does not exist") {
		t.Errorf("%v", said)
	}
}

// With a lease that long a regular renewal is minutes away: signs of life tell what is held.
func TestASignOfLifeTellsWhatIsHeld(t *testing.T) {
	began, ended := make(chan string, 2), make(chan error, 2)
	r := start(t, testdb.New(t), func(cfg *Config) { cfg.Lease = time.Hour }, map[string]Func{"long": untilDone(began, ended)})
	for _, id := range []string{"a", "b"} {
		r.submit(id, "long", "{}")
		receive(t, began)
	}
	busy := func() int { return value[int](r, "SELECT busy FROM taskgate.workers") }
	testdb.Until(t, "two busy slots", func() bool { return busy() == 2 })
	r.exec("UPDATE taskgate.workers SET busy = 9")
	testdb.Until(t, "another sign of life", func() bool { return busy() == 2 })
}
