package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Every statement that this program sends. The rules live in the functions, in the database.
// %s is their schema: `taskgate` for a tasks table in `public`.
const (
	sqlVersion      = `SELECT version FROM %s.schema_version`
	sqlRegister     = `SELECT %s.register_worker($1::text, 'go', $2::text, $3::text, $4::integer, $5::integer, $6::text[], $7::text[], $8::text[])`
	sqlForget       = `SELECT %s.forget_worker($1::text)`
	sqlClaim        = `SELECT outcome, extract(epoch FROM next_due), task_id, token, task_type, request, attempt, max_attempts, timeout_seconds, tenant, metadata, checkpoint, traceparent, extract(epoch FROM waited), upstream, model, paid FROM %s.claim($1::text, $2::integer, $3::bigint[], $4::interval, $5::text[], $6::integer, $7::boolean, $8::integer, $9::integer)`
	sqlFlush        = `SELECT %s.flush()`
	sqlBodies       = `SELECT task_id, token, request, metadata, checkpoint FROM %s.claimed_bodies($1::text[], $2::bigint[])`
	sqlRenew        = `SELECT task_id, token, outcome FROM %s.renew($1::text, $2::text[], $3::bigint[], $4::interval, $5::boolean)`
	sqlComplete     = `SELECT task_id, token, outcome FROM %s.complete($1::text[], $2::bigint[], $3::text[])`
	sqlFail         = `SELECT task_id, token, outcome FROM %s.fail($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::interval[])`
	sqlRelease      = `SELECT task_id, token, outcome FROM %s.release($1::text[], $2::bigint[], $3::interval[], $4::text[], $5::text[], $6::text[])`
	sqlCheckpoint   = `SELECT %s.checkpoint($1::text, $2::bigint, $3::text, $4::text)`
	sqlIntend       = `SELECT %s.intend($1::text, $2::bigint, $3::text, $4::boolean)`
	sqlOperation    = `SELECT %s.save_operation($1::text, $2::bigint, $3::text)`
	sqlWithdraw     = `SELECT %s.withdraw($1::text, $2::bigint)`
	sqlUpstreams    = `SELECT name, api, base_url, key_env, key_file, to_jsonb(models), model, project, location, credentials_file, enabled FROM %s.upstreams`
	sqlRecover      = `SELECT %s.recover()`
	sqlPurge        = `SELECT %[1]s.purge($1::integer), %[1]s.media_idle($2::text[])`
	sqlEnqueue      = `SELECT task_id, outcome FROM %s.enqueue($1::text[], $2::text[], $3::text[], $4::boolean[], $5::text[], $6::text, $7::text)`
	sqlMediaBegin   = `SELECT %s.media_begin($1::text, $2::text)`
	sqlMediaAppend  = `SELECT %s.media_append($1::bigint, $2::integer, $3::bytea[])`
	sqlMediaAttach  = `SELECT %s.media_attach($1::text, $2::bigint, $3::text, $4::bigint, $5::text, $6::bigint, $7::text)`
	sqlMediaDiscard = `SELECT %s.media_discard($1::bigint)`
	sqlMediaCollect = `SELECT blob, object FROM %s.media_collect($1::text)`
	sqlListen       = `LISTEN %[1]s_ready; LISTEN %[1]s_cancel`
	sqlListenAlone  = `SELECT %s.listen_alone($1::text[])`
)

const (
	oldestSchema = 1
	newestSchema = 1
)

// functionSchema is where the functions of a tasks table live.
func functionSchema(tableSchema string) string {
	if tableSchema == "public" {
		return "taskgate"
	}
	return "taskgate_" + tableSchema
}

// calls is the typed client of the functions on one connection. Each method is one round trip and one transaction.
type calls struct {
	conn     *pgconn.PgConn
	schema   string
	prepared map[string]*pgconn.StatementDescription // nil behind a transaction-mode pooler, which they do not survive
}

// rows sends one statement, prepared where that is possible.
func (c calls) rows(ctx context.Context, sql string, params ...param) ([][][]byte, error) {
	values, formats := encoded(params)
	if c.prepared == nil {
		result := c.conn.ExecParams(ctx, fmt.Sprintf(sql, c.schema), values, nil, formats, nil).Read()
		return result.Rows, result.Err
	}
	prepared, err := c.prepare(ctx, sql)
	if err != nil {
		return nil, err
	}
	result := c.conn.ExecStatement(ctx, prepared, values, formats, nil).Read()
	return result.Rows, result.Err
}

type param struct {
	value  []byte
	format int16
}

func text(value string) param           { return param{[]byte(value), 0} }
func literal(value []byte) param        { return param{value, 0} }
func binaryForm(value []byte) param     { return param{value, 1} }
func number[T ~int | ~int64](v T) param { return text(strconv.FormatInt(int64(v), 10)) }

func (c calls) one(ctx context.Context, sql string, params ...param) (string, error) {
	rows, err := c.rows(ctx, sql, params...)
	if err != nil || len(rows) == 0 || len(rows[0]) == 0 {
		return "", err
	}
	return string(rows[0][0]), nil
}

// checkVersion fails with SchemaMismatch, and its remedy, unless the database is in this program's range.
func (c calls) checkVersion(ctx context.Context) error {
	found, err := c.one(ctx, sqlVersion)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == "42P01" || refused.Code == "3F000") { // no such table, schema
		found, err = "", nil
	}
	if err != nil {
		return err
	}
	version, _ := strconv.Atoi(found)
	switch {
	case version == 0:
		return &SchemaMismatch{"the database has no taskgate schema: run `taskgate migrate`"}
	case version < oldestSchema:
		return &SchemaMismatch{fmt.Sprintf("the database has schema version %d, this program needs %d or newer: run `taskgate migrate`", version, oldestSchema)}
	case version > newestSchema:
		return &SchemaMismatch{fmt.Sprintf("the database has schema version %d, this program knows %d at most: upgrade taskgate", version, newestSchema)}
	}
	return nil
}

func (c calls) register(ctx context.Context, worker *Worker) error {
	names := worker.types
	schemas := make([]string, len(names))
	descriptions := make([]string, len(names))
	for i, name := range names {
		schemas[i], descriptions[i] = string(worker.handlers[name].schema), worker.handlers[name].description
	}
	_, err := c.rows(ctx, sqlRegister, text(worker.id), text(Version), text(worker.host), number(worker.pid),
		number(worker.cfg.Slots), binaryForm(textArray(names, nil)),
		binaryForm(textArray(schemas, func(i int) bool { return schemas[i] == "" })), binaryForm(textArray(descriptions, nil)))
	return err
}

// listen asks for the notifications of work and of cancellations.
// It answers the number by which this process can be woken alone, if it serves these types.
func (c calls) listen(ctx context.Context, types []string) (int32, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := c.conn.Exec(ctx, fmt.Sprintf(sqlListen, c.schema)).Close(); err != nil {
		return 0, err
	}
	text, err := c.one(ctx, sqlListenAlone, binaryForm(textArray(types, nil)))
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseInt(text, 10, 32)
	return int32(number), err
}

func (c calls) forget(ctx context.Context, id string) error {
	_, err := c.rows(ctx, sqlForget, text(id))
	return err
}

// verdict is what became of one task of a batch: done, already, stale, busy (somebody else holds the row) or, for a renewal, cancel.
type verdict struct {
	token   int64
	outcome string
}

func verdicts(rows [][][]byte, err error) ([]verdict, error) {
	if err != nil {
		return nil, err
	}
	out := make([]verdict, len(rows))
	for i, row := range rows {
		token, err := strconv.ParseInt(string(row[1]), 10, 64)
		if err != nil {
			return nil, err
		}
		out[i] = verdict{token, string(row[2])}
	}
	return out, nil
}

func (c calls) renew(ctx context.Context, worker string, held []*attempt, lease time.Duration, draining bool) ([]verdict, error) {
	ids, tokens := keys(held, func(a *attempt) *attempt { return a })
	return verdicts(c.rows(ctx, sqlRenew, text(worker), ids, tokens, text(interval(lease)), text(strconv.FormatBool(draining))))
}

// settle is the call that writes a batch of outcomes of one verb.
func settle(v verb, batch []settlement) statement {
	ids, tokens := keys(batch, settlement.of)
	switch v {
	case verbComplete:
		results := make([][]byte, len(batch))
		for i := range batch {
			results[i] = batch[i].result
		}
		return statement{sqlComplete, []param{ids, tokens, binaryForm(textArray(results, nil))}}
	case verbFail:
		retries := literal(list(len(batch), func(i int) string { return strconv.FormatBool(batch[i].retry) }))
		return statement{sqlFail, []param{ids, tokens, texts(batch, settlement.message), texts(batch, settlement.codeText), infos(batch), retries, delays(batch)}}
	}
	return statement{sqlRelease, []param{ids, tokens, delays(batch), texts(batch, settlement.codeText), texts(batch, settlement.message), infos(batch)}}
}

func (c calls) checkpoint(ctx context.Context, id string, token int64, checkpoint, progress []byte) (string, error) {
	return c.one(ctx, sqlCheckpoint, text(id), number(token), literal(checkpoint), literal(progress))
}

func (c calls) intend(ctx context.Context, id string, token int64, account []byte, retry bool) (string, error) {
	return c.one(ctx, sqlIntend, text(id), number(token), literal(account), text(strconv.FormatBool(retry)))
}

func (c calls) saveOperation(ctx context.Context, id string, token int64, operation []byte) (string, error) {
	return c.one(ctx, sqlOperation, text(id), number(token), literal(operation))
}

func (c calls) withdraw(ctx context.Context, id string, token int64) (string, error) {
	return c.one(ctx, sqlWithdraw, text(id), number(token))
}

func (c calls) recover(ctx context.Context) (int, error) {
	found, err := c.one(ctx, sqlRecover)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(found)
}

// purge answers how many tasks were deleted, and whether these stores have files that no task refers to.
func (c calls) purge(ctx context.Context, batch int, stores []string) (count int, idle bool, err error) {
	rows, err := c.rows(ctx, sqlPurge, number(batch), binaryForm(textArray(stores, nil)))
	if err != nil {
		return 0, false, err
	}
	count, err = strconv.Atoi(string(rows[0][0]))
	return count, string(rows[0][1]) == "t", err
}

func keys[T any](batch []T, of func(T) *attempt) (ids, tokens param) {
	names, numbers := make([]string, len(batch)), make([]int64, len(batch))
	for i := range batch {
		task := of(batch[i]).task
		names[i], numbers[i] = task.ID, task.Token
	}
	return binaryForm(textArray(names, nil)), literal(integers(numbers))
}

func texts(batch []settlement, of func(settlement) string) param {
	values := make([]string, len(batch))
	for i := range batch {
		values[i] = of(batch[i])
	}
	return binaryForm(textArray(values, nil))
}

func infos(batch []settlement) param {
	values := make([][]byte, len(batch))
	for i := range batch {
		values[i] = batch[i].info
	}
	return binaryForm(textArray(values, func(i int) bool { return values[i] == nil }))
}

func delays(batch []settlement) param {
	return literal(list(len(batch), func(i int) string {
		if batch[i].delay == nil {
			return "NULL"
		}
		return interval(*batch[i].delay)
	}))
}
