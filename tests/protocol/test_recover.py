"""Recovery, purge and the server's epoch."""

from __future__ import annotations

from pathlib import Path

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol.tools import Background, Db


def test_recovery_waits_a_margin_beyond_the_lease(db: Db) -> None:
    db.enqueue("a")
    db.run("UPDATE server_epoch SET seen_at = '-infinity'")
    db.claim(lease=60)
    db.age(60.3)
    assert db.recover() == 0
    db.age(0.8)
    assert db.recover() == 1
    task = db.task("a")
    assert (task["status"], task["worker_id"], task["locked_until"]) == ("pending", None, None)
    assert [(h["outcome"], h["error"]) for h in db.history("a")] == [("lost", "worker timeout")]


def test_the_last_attempt_ends_with_worker_timeout(db: Db) -> None:
    db.enqueue("a", options='{"max_attempts": 2}')
    for expected in ("pending", "failed"):
        db.claim()
        db.age(120)
        assert db.recover() == 1
        assert db.status("a") == expected
    task = db.task("a")
    assert (task["error"], task["error_code"], task["attempts"]) == ("worker timeout", "worker_timeout", 2)
    assert task["expires_at"] is not None
    assert [h["outcome"] for h in db.history("a")] == ["lost", "lost"]


def test_claim_recovers_by_itself_and_a_recovered_task_goes_first(db: Db) -> None:
    db.enqueue("a", "b")
    db.claim("dead")
    db.age(120)
    assert db.claim("w").ids == ["a"]


def test_an_operator_s_open_transaction_on_an_overdue_row_stalls_nobody(db: Db) -> None:
    db.set_limit(3)
    db.enqueue(*"abcdef")
    db.claim("dead", 2)
    db.age(120)
    with db.another() as operator, operator.connection.transaction():
        operator.run("UPDATE tasks SET updated_at = updated_at WHERE task_id = 'a'")
        call = Background(lambda: db.another().claim("w", 5))
        answer = call.result(10)
        assert answer.ids == ["b", "c"], "the held row goes on counting"
        assert db.another().recover() == 0
    assert db.recover() == 1
    assert db.running() == 2


def test_nothing_is_recovered_for_one_lease_after_a_restart(server_folder: Path) -> None:
    with EmbeddedPostgres(server_folder, port=0) as server:
        dsn = server.create_database("epoch")
        migrate(dsn)
        with Db(dsn) as db:
            db.enqueue("short", "long")
            ((first, _),) = db.claim("a", 1, lease=30).pairs
            last_token = db.claim("b", 1, lease=600).tokens[0]
            db.age(3600)
        server.restart("immediate")
        with Db(dsn) as db:
            assert db.recover() == 0, "the holders may be alive, and could not renew"
            assert db.claim("c", 5).outcome == "empty"
            assert db.renew((first, db.task(first)["claim_token"]), worker="a", lease=30) == ["done"]
            db.age(32)
            assert db.recover() == 1, "the one that did not renew within its lease"
            assert (db.status("short"), db.status("long")) == ("pending", "running")
            assert db.claim("d", 1).tokens[0] > last_token + 1_000_000, "no token of a lost tail of the log comes again"
            db.age(600)
            assert db.recover() >= 1
            assert db.status("long") == "pending"


def test_recovery_sees_what_the_ledger_does_not_know(db: Db) -> None:
    """A running row that came about without the lock, below the ledger's highest token."""
    db.enqueue("a", "b")
    db.run(
        "UPDATE tasks SET status = 'running', claim_token = -5, locked_until = now() - interval '1 hour'"
        " WHERE task_id = 'a'"
    )
    db.age(1)
    db.run("UPDATE server_epoch SET seen_at = '-infinity'")
    db.sweep_next()
    assert db.recover() == 1


def test_purge_goes_in_batches_and_waits_for_nobody(db: Db) -> None:
    ids = [f"t{i:02}" for i in range(30)]
    db.set_limit(100)
    db.enqueue(*ids, "kept", "running")
    pairs = db.claim("w", 32).pairs
    db.fail(*pairs[:30])
    db.complete(pairs[30])
    assert db.value("SELECT purge(10)") == 0, "nothing is due yet"
    db.run("UPDATE tasks SET expires_at = now() - interval '1 minute' WHERE task_id LIKE 't%%'")
    db.run("UPDATE tasks SET expires_at = now() - interval '1 minute' WHERE task_id = 'running'")
    with db.another() as other, other.connection.transaction():
        other.run("SELECT FROM tasks WHERE task_id = 't03' FOR UPDATE")
        with db.connection.transaction():
            assert db.value("SELECT purge(10)") == 10
            assert db.another().value("SELECT purge(10)") == 0, "one purger at a time"
            late = db.another()
            assert late.enqueue("new") == ["done"]
            assert Background(lambda: late.claim("x", 1)).result(10).ids == ["new"], "claim waits for no purge"
        assert [db.value("SELECT purge(10)") for _ in range(3)] == [10, 9, 0]
    assert db.value("SELECT purge(10)") == 1, "it goes on where it was"
    assert db.value("SELECT count(*) FROM task_attempts") == 0
    assert {row["task_id"] for row in db.run("SELECT task_id FROM tasks")} == {"kept", "running", "new"}


def test_the_ledger_stays_small(db: Db) -> None:
    db.run("SELECT count(write_ledger(last_ledger(), '{}', 0)) FROM generate_series(1, 5500)")
    assert db.value("SELECT count(*) FROM claim_ledger") <= 3100
