"""enqueue whose tasks are seen before they are on disk, and whose answer comes after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol.tools import Background, Db, until


@contextmanager
def durable(folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(folder, port=0, settings={"fsync": "on", "wal_writer_delay": "10s"}) as server:
        migrate(server.dsn)
        yield server


def test_it_answers_as_enqueue_does(db: Db) -> None:
    db.enqueue("b")
    assert db.enqueue_and_flush("a", "b", "c", "c") == ["done", "exists", "done", "exists"]
    assert sorted(db.claim(slots=9).ids) == ["a", "b", "c"]


def test_whatever_the_callers_search_path(db: Db) -> None:
    db.run("SET search_path = pg_catalog")
    assert db.enqueue_and_flush("a") == ["done"]


def test_every_parameter_counts(db: Db) -> None:
    request = '{"b": 1, "a": 2}'
    db.run(
        "CALL enqueue_and_flush('{a}', '{llm}', ARRAY[%s], '{true}', ARRAY[%s], 'acme', 'trace')",
        request,
        '{"priority": 7}',
    )
    row = db.task("a")
    assert (row["priority"], row["tenant"], row["traceparent"]) == (7, "acme", "trace")
    assert db.value("SELECT request_raw::text FROM tasks") == request


def test_a_row_that_is_refused_leaves_nothing_behind(db: Db) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        db.enqueue_and_flush("a", "b", request="{")
    assert db.run("SELECT FROM tasks") == []
    assert db.enqueue_and_flush("a") == ["done"]


def test_it_does_not_end_a_transaction_of_the_callers(db: Db) -> None:
    with pytest.raises(psycopg.errors.InvalidTransactionTermination), db.connection.transaction():
        db.enqueue_and_flush("a")
    assert db.run("SELECT FROM tasks") == []


@pytest.mark.parametrize("before", ["on", "off", "local"])
def test_the_sessions_own_setting_stays(db: Db, before: str) -> None:
    db.run(f"SET synchronous_commit = {before}")
    db.enqueue_and_flush("a")
    assert db.value("SHOW synchronous_commit") == before


@pytest.mark.parametrize("already", [False, True])
def test_what_was_answered_survives_a_crash(server_folder: Path, already: bool) -> None:
    """Also where somebody else wrote the task, and did not wait for the disk."""
    with durable(server_folder) as server:
        with Db(server.dsn) as db:
            if already:
                db.run("SET synchronous_commit = off")
                db.enqueue("a")
                db.run("SET synchronous_commit = on")
            assert db.enqueue_and_flush("a") == ["exists" if already else "done"]
        server.restart("immediate")
        with Db(server.dsn) as db:
            assert db.status("a") == "pending"


def test_workers_hear_of_a_task_before_it_is_on_disk_and_a_claim_waits_for_that(server_folder: Path) -> None:
    with durable(server_folder) as server, Db(server.dsn) as worker, Db(server.dsn) as producer:
        worker.run("LISTEN taskgate_ready")
        assert worker.claim().outcome == "empty"
        worker.run("SET synchronous_commit = local")
        # a commit that is to be on disk waits for a standby that is not there
        worker.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        worker.run("SELECT pg_reload_conf()")
        until(lambda: producer.value("SHOW synchronous_standby_names") == "nobody", "the setting")
        submission = Background(lambda: producer.enqueue_and_flush("a"))
        assert [each.channel for each in worker.connection.notifies(timeout=30, stop_after=1)] == ["taskgate_ready"]
        worker.run("SET synchronous_commit = on")
        claim = Background(worker.claim)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        with Db(server.dsn) as other:
            until(lambda: other.value(waiting) == 2, "both wait")
            assert not submission.done
            assert not claim.done
            other.run("SET synchronous_commit = local")
            other.run("ALTER SYSTEM RESET synchronous_standby_names")
            other.run("SELECT pg_reload_conf()")
        assert submission.result() == ["done"]
        assert claim.result().ids == ["a"]
