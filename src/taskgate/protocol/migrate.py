"""Brings a database to this version's schema: numbered table changes by yoyo, then every function anew.

Takes over an origin `tasks` table that is in use; refuses a table of that name that is something else.
"""

from __future__ import annotations

import getpass
import os
import time
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from taskgate.protocol.version import SCHEMA_VERSION, function_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ADOPT_BATCH = 5000
SMALLEST = -(2**63)
STATUSES = ("pending", "running", "completed", "failed")
ORIGIN_COLUMNS = {
    "task_id": "text",
    "status": "text",
    "task_type": "text",
    "request": "jsonb",
    "result": "jsonb",
    "error": "text",
    "attempts": "integer",
    "locked_until": "timestamp with time zone",
    "created_at": "timestamp with time zone",
    "updated_at": "timestamp with time zone",
    "expires_at": "timestamp with time zone",
}
WHAT_IT_LACKS = """
    WITH has AS (
        SELECT column_name || ' ' || data_type AS what FROM information_schema.columns
        WHERE table_schema = %s AND table_name = 'tasks'
    )
    SELECT array_agg(want) FROM unnest(%s::text[]) AS want WHERE want NOT IN (SELECT what FROM has)
"""
KEY_COLUMNS = """
    SELECT array_agg(a.attname::text) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = to_regclass(%s) AND i.indisprimary
"""
FLEET_VALUES = """
    SELECT max_concurrent::float8, max_attempts::float8, extract(epoch FROM max_throttle)::float8,
           extract(epoch FROM result_ttl)::float8, extract(epoch FROM ageing)::float8 FROM settings
"""
FLEET_WORDS = (
    ("limit", "MAX_CONCURRENT_TASKS"),
    ("attempts a task", "TASKGATE_MAX_ATTEMPTS"),
    ("seconds of throttling", "TASKGATE_MAX_THROTTLE_SECONDS"),
    ("seconds a finished task is kept", "TASKGATE_RESULT_TTL_SECONDS"),
    ("seconds that raise a priority", "TASKGATE_AGEING_SECONDS"),
)
LOCK_TIMEOUT = "1s"
LOCK_PAUSE = 0.5
"""Seconds between tries, in which those who wait behind us get on with it."""
LOCK_SECONDS = 120.0


class MigrationError(Exception):
    """The database cannot be brought to this schema; the message says why and what helps."""


def migrate(
    database_url: str,
    *,
    schema: str = "public",
    configured: Mapping[str, float] | None = None,
    upstreams: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Migrate and return the schema version. Safe to run twice, and by many at once.

    `configured` are the fleet-wide values of the environment (max_concurrent, max_attempts; max_throttle, result_ttl
    and ageing in seconds); each is taken over only if it changed since migrate last saw it; one that is not given
    stays. `say` hears of each step, and of values that changed in a line with an arrow. `upstreams` is the JSON
    array for apply_upstreams; None leaves them as they are.
    Raises MigrationError when the tasks table is something else or the schema is newer than this program.
    """
    functions = function_schema(schema)
    place = f"{functions},{schema}"
    try:
        with psycopg.connect(database_url, autocommit=True, application_name="taskgate migrate") as connection:
            _one_at_a_time(connection, functions)
            _refuse_other_table(connection, schema)
            for name in (schema, functions):
                if not _value(connection, "SELECT to_regnamespace(%s)", name):
                    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
            connection.execute(f"SET search_path = {place}")
            _refuse_newer(connection)
            _table_changes(connection, database_url, place, say)
            _patiently(lambda: _functions(connection, say), say)
            connection.execute("SELECT note_server_epoch(clock_timestamp())")
            _adopt(connection, say)
            connection.execute("UPDATE schema_version SET version = %s", (SCHEMA_VERSION,))
            if configured is not None:
                _configure(connection, configured, say)
            if upstreams is not None:
                for name, change in connection.execute(
                    "SELECT * FROM apply_upstreams(%s::jsonb)", (upstreams,)
                ).fetchall():
                    say(f"upstream {name}: {change}")
    except psycopg.OperationalError as error:
        raise MigrationError(f"cannot reach the database: {str(error).strip()}") from error
    except psycopg.Error as error:
        hint = getattr(error.diag, "message_hint", None)
        raise MigrationError(f"{error.diag.message_primary or error}{f' {hint}' if hint else ''}") from error
    return SCHEMA_VERSION


def _configure(
    connection: psycopg.Connection[tuple[object, ...]], configured: Mapping[str, float], say: Callable[[str], None]
) -> None:
    def values() -> tuple[object, ...]:
        return connection.execute(FLEET_VALUES).fetchone() or ()

    with connection.transaction():
        before = values()
        connection.execute("SELECT configure(%s)", (Jsonb(dict(configured)),))
        after = values()
    for (words, variable), old, new in zip(FLEET_WORDS, before, after, strict=True):
        if old != new:
            say(f"{words} {old:g} → {new:g}, from {variable}")


def _one_at_a_time(connection: psycopg.Connection[tuple[object, ...]], functions: str) -> None:
    # not the lock that waits: its snapshot would keep the other's CREATE INDEX CONCURRENTLY waiting for us
    key = f"migrate {functions}"
    while not _value(connection, "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", key):
        time.sleep(0.2)


def _patiently(step: Callable[[], object], say: Callable[[str], None]) -> None:
    """Try a step again while a lock is not to be had: waiting in line for it would stop every user of the table."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            step()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > deadline:
                raise MigrationError(
                    "the tasks table is held by a long transaction: end it (pg_stat_activity shows it, oldest"
                    " xact_start first), then run migrate again"
                ) from error
            say("waiting for a transaction that holds the tasks table")
            time.sleep(LOCK_PAUSE)
        else:
            return


def _functions(connection: psycopg.Connection[tuple[object, ...]], say: Callable[[str], None]) -> None:
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        for name, text in _function_files():
            say(f"function file {name}")
            connection.execute(text.encode())


def _refuse_other_table(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> None:
    """Refuse a table named tasks that is something else, before anything is changed."""
    place = sql.Identifier(schema, "tasks")
    remedy = "set TASKGATE_SCHEMA to another schema, or rename that table"
    if not _value(connection, "SELECT to_regclass(%s)", place.as_string(connection)):
        return
    lacks = _value(connection, WHAT_IT_LACKS, schema, [f"{name} {kind}" for name, kind in ORIGIN_COLUMNS.items()])
    if lacks:
        raise MigrationError(f"the table {schema}.tasks is not a task table, it lacks {', '.join(lacks)}: {remedy}")
    if _value(connection, KEY_COLUMNS, place.as_string(connection)) != ["task_id"]:
        raise MigrationError(f"the table {schema}.tasks is not a task table, task_id is not its primary key: {remedy}")
    strange = connection.execute(
        sql.SQL("SELECT DISTINCT status FROM {} WHERE status <> ALL (%s) LIMIT 10").format(place), [list(STATUSES)]
    ).fetchall()
    if strange:
        names = ", ".join(repr(status) for (status,) in strange)
        raise MigrationError(
            f"the table {schema}.tasks has rows of the unknown status {names}: taskgate knows {', '.join(STATUSES)};"
            " change those rows first"
        )


def _refuse_newer(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    if not _value(connection, "SELECT to_regclass('schema_version')"):
        connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (0)")
    version = _value(connection, "SELECT version FROM schema_version")
    if version > SCHEMA_VERSION:
        raise MigrationError(
            f"the database has schema version {version}, this program knows {SCHEMA_VERSION} at most: upgrade taskgate"
        )


def _drop_invalid_indexes(connection: psycopg.Connection[tuple[object, ...]], say: Callable[[str], None]) -> None:
    """What a CREATE INDEX CONCURRENTLY that was cut short left behind, which IF NOT EXISTS would take for done."""
    invalid = connection.execute(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = to_regclass('tasks') AND NOT indisvalid"
    ).fetchall()
    for (name,) in invalid:
        say(f"index {name} was left unfinished: building it anew")
        connection.execute(f"DROP INDEX CONCURRENTLY {name}".encode())


def _table_changes(
    connection: psycopg.Connection[tuple[object, ...]], database_url: str, place: str, say: Callable[[str], None]
) -> None:
    """Apply the numbered files that are not applied yet, retrying when a lock on the table is not to be had."""
    from yoyo import get_backend, read_migrations  # type: ignore[import-untyped]

    _have_a_name()
    backend = get_backend(_yoyo_url(database_url, place))
    try:
        with as_file(files("taskgate.protocol") / "migrations") as folder:
            wanted = backend.to_apply(read_migrations(str(folder)))
            for migration in wanted:
                say(f"migration {migration.id}")

                def apply(migration: Any = migration) -> None:
                    try:
                        _drop_invalid_indexes(connection, say)
                        backend.apply_one(migration)
                    except psycopg.Error:
                        backend.rollback()
                        raise

                _patiently(apply, say)
    finally:
        backend.connection.close()


def _have_a_name() -> None:
    """yoyo notes who migrated, and fails where the user id has no name, as in many containers."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"uid{os.getuid()}"


def _yoyo_url(database_url: str, place: str) -> str:
    parts = urlsplit(database_url)
    query = [*parse_qsl(parts.query), ("schema", f"{place}; SET lock_timeout = '{LOCK_TIMEOUT}'")]
    return urlunsplit(("postgresql+psycopg", parts.netloc, parts.path, urlencode(query), ""))


def _function_files() -> list[tuple[str, str]]:
    folder = files("taskgate.protocol") / "functions"
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
    first = ["lock_key.sql", "epoch_ms.sql", "announce.sql"]
    return [(name, texts[name]) for name in [*first, *sorted(texts.keys() - set(first))]]


def _adopt(connection: psycopg.Connection[tuple[object, ...]], say: Callable[[str], None]) -> None:
    """Bring the rows of an adopted table along, a short transaction at a time."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        names = ("adopt_rank", "adopt_running", "adopt_flows")
        missing, running, lost = (_value(connection, f"SELECT {name}()") for name in names)
        if not missing and not running and not lost:
            return
        say(f"adopting {missing} rows, {running} of them running")
        while True:
            last: Any = SMALLEST
            while last is not None:
                last = _value(connection, "SELECT adopt_order(%s, %s)", last, ADOPT_BATCH)
            if time.monotonic() > deadline:
                raise MigrationError(
                    "rows of the tasks table are held by a long transaction: end it (pg_stat_activity shows it, oldest"
                    " xact_start first), then run migrate again"
                )
            if not _value(connection, "SELECT count(*) FROM adopting"):
                break
            time.sleep(LOCK_PAUSE)


def _value(connection: psycopg.Connection[tuple[object, ...]], statement: str, *values: object) -> Any:
    row = connection.execute(statement.encode(), values).fetchone()
    return row[0] if row else None
