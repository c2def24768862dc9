"""Brings a database to this version's schema: numbered table changes by yoyo, then every function anew.

Takes over an origin `tasks` table that is in use; refuses a table of that name that is something else.
"""

from __future__ import annotations

import time
from importlib.resources import as_file, files
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.types.json import Jsonb

from taskgate.protocol.version import SCHEMA_VERSION, function_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ADOPT_BATCH = 5000
LOCK_TIMEOUT = "4s"
LOCK_TRIES = 15


class MigrationError(Exception):
    """The database cannot be brought to this schema; the message says why and what helps."""


def migrate(
    database_url: str,
    *,
    schema: str = "public",
    configured: Mapping[str, float] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Migrate and return the schema version. Safe to run twice, and by many at once.

    `configured` are the fleet-wide values of the environment (max_concurrent, max_attempts, max_throttle and
    result_ttl in seconds); each is taken over only if it changed since migrate last saw it.
    Raises MigrationError when the tasks table is something else or the schema is newer than this program.
    """
    functions = function_schema(schema)
    place = f"{functions},{schema}"
    try:
        with psycopg.connect(database_url, autocommit=True, application_name="taskgate migrate") as connection:
            _one_at_a_time(connection, functions)
            for name in (schema, functions):
                if not connection.execute("SELECT to_regnamespace(%s)", (name,)).fetchone()[0]:  # type: ignore[index]
                    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
            connection.execute(f"SET search_path = {place}")
            _refuse_newer(connection)
            _table_changes(database_url, place, say)
            with connection.transaction():
                for name, text in _function_files():
                    say(f"function file {name}")
                    connection.execute(text.encode())
                connection.execute("SELECT note_server_epoch(clock_timestamp())")
                connection.execute("UPDATE schema_version SET version = %s", (SCHEMA_VERSION,))
            _adopt(connection)
            if configured is not None:
                connection.execute("SELECT configure(%s)", (Jsonb(dict(configured)),))
    except psycopg.OperationalError as error:
        raise MigrationError(f"cannot reach the database: {str(error).strip()}") from error
    except psycopg.Error as error:
        hint = getattr(error.diag, "message_hint", None)
        raise MigrationError(f"{error.diag.message_primary or error}{f' {hint}' if hint else ''}") from error
    return SCHEMA_VERSION


def _one_at_a_time(connection: psycopg.Connection[tuple[object, ...]], functions: str) -> None:
    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (f"migrate {functions}",))


def _refuse_newer(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    if not connection.execute("SELECT to_regclass('schema_version')").fetchone()[0]:  # type: ignore[index]
        connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (0)")
    version = connection.execute("SELECT version FROM schema_version").fetchone()[0]  # type: ignore[index]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise MigrationError(
            f"the database has schema version {version}, this program knows {SCHEMA_VERSION} at most: upgrade taskgate"
        )


def _table_changes(database_url: str, place: str, say: Callable[[str], None]) -> None:
    """Apply the numbered files that are not applied yet, retrying when a lock on the table is not to be had."""
    from yoyo import get_backend, read_migrations  # type: ignore[import-untyped]

    backend = get_backend(_yoyo_url(database_url, place))
    try:
        with as_file(files("taskgate.protocol") / "migrations") as folder:
            wanted = backend.to_apply(read_migrations(str(folder)))
            for migration in wanted:
                say(f"migration {migration.id}")
                for remaining in reversed(range(LOCK_TRIES)):
                    try:
                        backend.apply_one(migration)
                        break
                    except psycopg.errors.LockNotAvailable:
                        # somebody's long transaction; waiting in line would stop every other user of the table
                        backend.rollback()
                        if not remaining:
                            raise
                        time.sleep(0.2)
    finally:
        backend.connection.close()


def _yoyo_url(database_url: str, place: str) -> str:
    parts = urlsplit(database_url)
    query = [*parse_qsl(parts.query), ("schema", f"{place}; SET lock_timeout = '{LOCK_TIMEOUT}'")]
    return urlunsplit(("postgresql+psycopg", parts.netloc, parts.path, urlencode(query), ""))


def _function_files() -> list[tuple[str, str]]:
    folder = files("taskgate.protocol") / "functions"
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
    first = ["lock_key.sql", "epoch_ms.sql", "announce.sql"]
    return [(name, texts[name]) for name in [*first, *sorted(texts.keys() - set(first))]]


def _adopt(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    last: object = ""
    while last is not None:
        last = connection.execute("SELECT adopt(%s, %s)", (last, ADOPT_BATCH)).fetchone()[0]  # type: ignore[index]
