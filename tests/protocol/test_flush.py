"""claim that does not wait for the disk, and flush behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol.tools import Db

UNFLUSHED = "SELECT task_id, token FROM claim('w', 1, '{}', '60 seconds', '{llm}', NULL, false)"


def test_a_flushed_claim_survives_a_crash(server_folder: Path) -> None:
    with EmbeddedPostgres(server_folder, port=0, settings={"fsync": "on", "wal_writer_delay": "10s"}) as server:
        migrate(server.dsn)
        with Db(server.dsn) as db:
            db.enqueue("a")
            (claimed,) = db.run(UNFLUSHED)
            end = db.value("SELECT pg_current_wal_insert_lsn()::text")
            db.run("SELECT flush()")
            assert db.value("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", end)
        server.restart("immediate")
        with Db(server.dsn) as db:
            row = db.task("a")
            assert (row["status"], row["claim_token"]) == ("running", claimed["token"])


@pytest.mark.parametrize("before", ["on", "off", "local"])
def test_the_sessions_own_setting_stays(db: Db, before: str) -> None:
    db.enqueue("a")
    db.run(f"SET synchronous_commit = {before}")
    assert [row["task_id"] for row in db.run(UNFLUSHED)] == ["a"]
    assert db.value("SHOW synchronous_commit") == before


def test_a_claim_waits_for_the_disk_only_where_it_is_told_not_to(db: Db) -> None:
    setting = "SELECT current_setting('synchronous_commit')"
    db.enqueue("a", "b", "c")
    with db.connection.transaction():
        db.claim("w", 1)
        assert db.value(setting) == "on"
    with db.connection.transaction():
        db.run(UNFLUSHED)
        assert db.value(setting) == "off"
    db.run("UPDATE tasks SET locked_until = now() - interval '1 hour' WHERE status = 'running'")
    with db.connection.transaction():
        db.run(UNFLUSHED)
        assert db.value(setting) == "on", "a claim that ended tasks is as lasting as their ends that somebody may read"


def test_only_a_sign_of_life_does_not_wait_for_the_disk(db: Db) -> None:
    setting = "SELECT current_setting('synchronous_commit')"
    db.enqueue("a")
    pair = db.claim("w", 1).pairs[0]
    with db.connection.transaction():
        assert db.renew(pair) == ["done"]
        assert db.value(setting) == "on"
    with db.connection.transaction():
        assert db.renew() == []
        assert db.value(setting) == "off"
    with db.connection.transaction():
        assert db.complete(pair) == ["done"]
        assert db.renew() == []
        assert db.value(setting) == "on", "what was written before it is to last"
