// Package testdb gives tests a fresh copy of a migrated database.
package testdb

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Variable names the migrated database that is copied; nobody may be connected to it.
const Variable = "TASKGATE_TEST_DATABASE_URL"

// New copies the database and answers the copy's URL; it is dropped when the test ends. Without the variable the
// test is skipped, and says so.
func New(t testing.TB) string {
	t.Helper()
	given := os.Getenv(Variable)
	if given == "" {
		t.Skipf("NOT TESTED against PostgreSQL: %s is not set; pytest tests/go starts one and sets it", Variable)
	}
	target, err := url.Parse(given)
	if err != nil {
		t.Fatalf("%s is no URL", Variable)
	}
	template := target.Path[1:]
	var random [8]byte
	_, _ = rand.Read(random[:])
	name := "go_" + hex.EncodeToString(random[:])
	admin := *target
	admin.Path = "/postgres"
	execute(t, admin.String(), fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, pgx.Identifier{template}.Sanitize()))
	t.Cleanup(func() { execute(t, admin.String(), fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name)) })
	target.Path = "/" + name
	return target.String()
}

// Connect opens a connection that ends with the test.
func Connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Until polls until done, and fails the test after three quarters of one.
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(45 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 45 s for %s", what)
		}
	}
}

func execute(t testing.TB, dsn, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	// two tests may copy at the same time, and a template serves one
	for err = fmt.Errorf("not tried"); err != nil && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if _, err = conn.Exec(ctx, statement); err == nil {
			return
		}
	}
	t.Fatal(err)
}
