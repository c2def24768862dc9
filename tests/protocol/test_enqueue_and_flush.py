"""enqueue whose tasks are seen before they are on disk, and whose answer comes after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.mark.parametrize(
    "arrays",
    [
        """'{a}', '{llm}', '[0:0]={"{}"}'""",
        """'[0:0]={a}', '{llm}', '{"{}"}'""",
        """'{a}', '{llm}', '{"{}"}', '[5:5]={true}', '[2:2]={"{}"}'""",
        """'{a}', '{llm}', '{"{}"}', '{}', '{}'""",
    ],
)
def test_a_single_task_in_arrays_of_any_bounds(db: Db, arrays: str) -> None:
    assert db.value(f"CALL enqueue_and_flush({arrays})") == ["done"]
    assert db.claim().ids == ["a"]


def test_arrays_of_unequal_length_are_refused(db: Db) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation):
        db.run("""CALL enqueue_and_flush('{a}', '{llm,llm}', '{"{}","{}"}')""")
    assert db.run("SELECT FROM tasks") == []


def test_it_does_not_end_a_transaction_of_the_callers(db: Db) -> None:
    with pytest.raises(psycopg.errors.InvalidTransactionTermination), db.connection.transaction():
        db.enqueue_and_flush("a")
    assert db.run("SELECT FROM tasks") == []


@pytest.mark.parametrize("before", ["on", "off", "local"])
def test_the_sessions_own_setting_stays(db: Db, before: str) -> None:
    db.run(f"SET synchronous_commit = {before}")
    db.enqueue_and_flush("a")
    assert db.value("SHOW synchronous_commit") == before


ONCE = "SELECT outcome FROM enqueue_once('key', 'print', 'a', 'llm', '{}')"


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        (lambda db: None, lambda db: db.enqueue_and_flush("a") == ["done"]),
        (lambda db: db.enqueue("a"), lambda db: db.enqueue_and_flush("a") == ["exists"]),
        (lambda db: db.enqueue("a"), lambda db: db.enqueue("a") == ["exists"]),
        (lambda db: db.run(ONCE), lambda db: db.value(ONCE) == "replayed"),
    ],
)
def test_what_was_answered_survives_a_crash(
    server_folder: Path, written: Callable[[Db], object], asked: Callable[[Db], bool]
) -> None:
    """Also where somebody else wrote the task, and did not wait for the disk."""
    with durable(server_folder) as server:
        with Db(server.dsn) as db:
            db.run("SET synchronous_commit = off")
            written(db)
            db.run("SET synchronous_commit = on")
            assert asked(db)
        server.restart("immediate")
        with Db(server.dsn) as db:
            assert db.status("a") == "pending"


def test_workers_hear_of_a_task_before_it_is_on_disk_and_a_claim_waits_for_that(server_folder: Path) -> None:
    with durable(server_folder) as server, Db(server.dsn) as worker, Db(server.dsn) as producer:
        other = worker.another()
        other.run("SET synchronous_commit = local")

        def waiting() -> int:
            return int(other.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))

        def commits_wait() -> bool:
            commit = Background(lambda: producer.run("SELECT pg_logical_emit_message(true, 'test', '')"))
            until(lambda: commit.done or waiting(), "a commit, or that it waits")
            if commit.done:
                return False
            other.run("SELECT pg_cancel_backend(%s)", producer.connection.info.backend_pid)
            commit.result()
            return True

        worker.run("LISTEN taskgate_ready")
        assert worker.claim().outcome == "empty"
        # a commit that is to be on disk waits for a standby that is not there
        other.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        other.run("SELECT pg_reload_conf()")
        until(commits_wait, "that the setting is heeded")
        submission = Background(lambda: producer.enqueue_and_flush("a"))
        assert [each.channel for each in worker.connection.notifies(timeout=30, stop_after=1)] == ["taskgate_ready"]
        claim = Background(worker.claim)
        until(lambda: waiting() == 2, "both wait")
        assert not submission.done
        assert not claim.done
        other.run("ALTER SYSTEM RESET synchronous_standby_names")
        other.run("SELECT pg_reload_conf()")
        assert submission.result() == ["done"]
        assert claim.result().ids == ["a"]
