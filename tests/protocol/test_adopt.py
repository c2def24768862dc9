"""migrate takes over a table of the origin that is in use, beside workers that go on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from taskgate.protocol import migrate as module
from taskgate.protocol.migrate import MigrationError, migrate
from tests.protocol import origin as origin_statements
from tests.protocol.origin import OriginWorker
from tests.protocol.tools import Background, Db, until

IN_EVERY_STATE = """
    INSERT INTO tasks (task_id, status, task_type, request)
        SELECT 'old' || lpad(i::text, 4, '0'), 'pending', 'llm', '{{}}' FROM generate_series(1, {old}) i;
    INSERT INTO tasks (task_id, status, result)
        SELECT 'done' || i, 'completed', '{{"x": 1}}' FROM generate_series(1, 50) i;
    INSERT INTO tasks (task_id, status, error)
        SELECT 'bad' || i, 'failed', 'worker timeout' FROM generate_series(1, 50) i;
    INSERT INTO tasks (task_id, status) VALUES ('null pending', 'pending'), ('null running', 'running');
    INSERT INTO tasks (task_id, status, task_type, request, attempts, locked_until)
        VALUES ('dead', 'running', 'llm', '{{}}', 1, now() + interval '2 s');
"""


def origin_worker(dsn: str) -> OriginWorker:
    return OriginWorker(psycopg.connect(dsn))


def make_origin_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(origin_statements.TABLE.encode())


def test_a_long_transaction_does_not_make_migrate_stop_the_others(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_origin_table(empty_database)
    holder, other = origin_worker(empty_database), origin_worker(empty_database)
    said: list[str] = []
    slowest = 0.0
    with holder.connection.transaction():
        holder.insert("held")
        call = Background(lambda: migrate(empty_database, say=said.append))
        until(lambda: sum("waiting" in line for line in said) >= 2, "migrate says that it waits")
        for i in range(20):
            before = time.monotonic()
            other.insert(f"t{i}")
            slowest = max(slowest, time.monotonic() - before)
        assert not call.done
    call.result(120)
    assert slowest < 20, "an insert waits for one try of migrate at most, not for the long transaction"
    with Db(empty_database) as db:
        assert db.value("SELECT count(*) FROM tasks WHERE seq IS NULL") == 0
        db.set_limit(100)
        assert sorted(db.claim("w", 50).ids) == sorted(["held", *(f"t{i}" for i in range(20))])
        # and one that does not end is named, and nothing is half done
        monkeypatch.setattr(module, "LOCK_SECONDS", 2.0)
        with holder.connection.transaction():
            holder.insert("held for ever")
            with pytest.raises(MigrationError, match="long transaction"):
                migrate(empty_database)
        assert db.claim("v", 5).ids == ["held for ever"]


def test_an_origin_table_in_use_is_adopted(empty_database: str) -> None:
    """Rows in every state, NULL requests, workers and a producer of the origin running all along; then ours join."""
    limit, old, new = 5, 400, 300
    make_origin_table(empty_database)
    first = origin_worker(empty_database)
    first.connection.execute(IN_EVERY_STATE.format(old=old).encode())

    held, most, done = 0, 0, Counter[str]()
    guard, over, joined = threading.Lock(), threading.Event(), threading.Event()

    def took(change: int, task_id: str | None = None) -> None:
        nonlocal held, most
        with guard:
            held += change
            most = max(most, held)
            if task_id:
                done[task_id] += 1

    def origin_loop() -> None:
        worker = origin_worker(empty_database)
        worker.limit = limit
        while not over.is_set():
            try:
                task_id = worker.claim()
            except psycopg.errors.LockNotAvailable:
                continue
            if task_id is None:
                time.sleep(0.005)
                continue
            took(+1)
            time.sleep(0.002)
            took(-1)
            if worker.complete(task_id, {"by": "origin"}):
                took(0, task_id)
        worker.close()

    def producer_loop() -> None:
        worker = origin_worker(empty_database)
        for i in range(new):
            worker.insert(f"new{i:04}")
            time.sleep(0.005)
            if i == new // 2:
                joined.wait()  # the rest is for all of them
        worker.close()

    def our_loop(name: str) -> Callable[[], None]:
        def loop() -> None:
            with Db(empty_database) as db:
                while not over.is_set():
                    answer = db.claim(name, 3, lease=30)
                    for pair in answer.pairs:
                        took(+1)
                        time.sleep(0.002)
                        took(-1)
                        if db.complete(pair, result='{"by": "ours"}') == ["done"]:
                            took(0, pair[0])
                    if not answer.rows:
                        time.sleep(0.005)

        return loop

    threads = [Background(origin_loop), Background(origin_loop), Background(producer_loop)]
    until(lambda: sum(done.values()) > 10, "the origin is at work")
    migrate(empty_database, configured={"max_concurrent": limit})
    threads += [Background(our_loop("x")), Background(our_loop("y"))]
    joined.set()
    with Db(empty_database) as db:
        until(
            lambda: (
                db.value("SELECT count(*) FROM tasks WHERE task_id ~ '^(old|new|dead)' AND status = 'completed'")
                == old + new + 1
            ),
            "every task is completed",
            120,
        )
        over.set()
        for thread in threads:
            thread.result()
        assert most <= limit
        assert max(done.values()) == 1
        assert sum(done.values()) == old + new + 1
        by = Counter(
            row["by"] for row in db.run("SELECT result ->> 'by' AS by FROM tasks WHERE task_id ~ '^(old|new|dead)'")
        )
        assert by["origin"] > 0, by
        assert by["ours"] > 0, by
        assert db.value("SELECT count(*) FROM tasks WHERE seq IS NULL") == 0
        assert db.value("SELECT count(*) - count(DISTINCT seq) FROM tasks") == 0
        assert (db.status("null pending"), db.status("null running")) == ("pending", "running")
        assert db.claim("z", 100).outcome == "empty"
        order = [r["task_id"] for r in db.run("SELECT task_id FROM tasks WHERE task_id LIKE 'old%%' ORDER BY seq")]
        assert order == sorted(order)
        newest_old = db.value("SELECT max(seq) FROM tasks WHERE task_id LIKE 'old%%'")
        assert newest_old < db.value("SELECT max(seq) FROM tasks WHERE task_id LIKE 'new%%'")
        assert db.retry("bad1") == "not_failed", "there is nothing to run in it"


def test_running_rows_that_are_adopted_count_by_the_ledger_alone(empty_database: str) -> None:
    make_origin_table(empty_database)
    worker = origin_worker(empty_database)
    for name in "abcde":
        worker.insert(name)
    assert [worker.claim(), worker.claim()] == ["a", "b"]
    migrate(empty_database, configured={"max_concurrent": 3})
    with Db(empty_database) as db:
        assert db.claim("w", 5).ids == ["c"]
        db.no_sweep()
        assert db.claim("v", 5).outcome == "full"
        assert worker.complete("a") == 1
        db.no_sweep()
        assert db.claim("v", 5).ids == ["d"]
        tokens = [r["claim_token"] for r in db.run("SELECT claim_token FROM tasks WHERE status = 'running'")]
        assert len(set(tokens)) == 3
        assert 0 not in tokens
