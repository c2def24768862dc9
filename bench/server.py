"""The PostgreSQL of a comparison: one of its own, durable, the same settings for whoever is measured."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from taskgate.settings import Settings

SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min"}
"""Beside these, PostgreSQL as it comes: fsync and synchronous_commit are on."""
SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "checkpoint_timeout")


@contextmanager
def bench_server(settings: Mapping[str, str] | None = None, keep: Path | None = None) -> Iterator[EmbeddedPostgres]:
    """A server in a folder that is removed afterwards, or in `keep`, where it is found again."""
    folder = keep or Path(tempfile.mkdtemp(prefix="taskgate-bench-", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    try:
        with EmbeddedPostgres(folder, port=0, settings=SERVER | dict(settings or {})) as server:
            yield server
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def migrated(server: EmbeddedPostgres, name: str, limit: int = 20) -> str:
    """The URL of a database with taskgate's schema, made unless it is there."""
    dsn = server.create_database(name)
    migrate(dsn, configured=Settings(database_url=dsn, max_concurrent_tasks=limit).fleet_values())
    return dsn


def server_facts(dsn: str) -> str:
    """Version and the settings that decide what a commit costs."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT name, current_setting(name) FROM unnest(%s::text[]) WITH ORDINALITY AS s (name, n) ORDER BY n",
            [["server_version", *SHOWN]],
        ).fetchall()
    (_, version), *settings = rows
    return f"PostgreSQL {version}, " + ", ".join(f"{name} {value}" for name, value in settings)
