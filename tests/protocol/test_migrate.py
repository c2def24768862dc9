"""migrate: fresh, twice, at once, beside others, over an origin table in use, and in bad company."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from taskgate.protocol import migrate as module
from taskgate.protocol.migrate import MigrationError, migrate
from taskgate.protocol.version import SCHEMA_VERSION
from tests.protocol import origin as origin_statements
from tests.protocol.origin import OriginWorker
from tests.protocol.tools import Background, Db, until

SHAPE = """
    SELECT 'column', table_schema, table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_name NOT LIKE '%yoyo%'
    UNION ALL SELECT 'index', schemaname, tablename, indexname, indexdef FROM pg_indexes
    WHERE schemaname !~ '^pg_' AND tablename NOT LIKE '%yoyo%'
    UNION ALL SELECT 'trigger', event_object_schema, event_object_table, trigger_name, action_statement
    FROM information_schema.triggers
    UNION ALL SELECT 'schema', nspname, '', '', '' FROM pg_namespace WHERE nspname !~ '^pg_'
    ORDER BY 1, 2, 3, 4, 5
"""

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


def shape(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(SHAPE.encode()).fetchall()


def origin_worker(dsn: str) -> OriginWorker:
    return OriginWorker(psycopg.connect(dsn))


def make_origin_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(origin_statements.TABLE.encode())


def test_twice_changes_nothing(empty_database: str) -> None:
    assert migrate(empty_database, configured={"max_concurrent": 7}) == SCHEMA_VERSION
    first = shape(empty_database)
    with Db(empty_database) as db:
        db.set_limit(3)
    migrate(empty_database, configured={"max_concurrent": 7})
    assert shape(empty_database) == first
    with Db(empty_database) as db:
        assert db.value("SELECT max_concurrent FROM settings") == 3, "a limit set live survives the same setting"
        migrate(empty_database, configured={"max_concurrent": 9})
        assert db.value("SELECT max_concurrent FROM settings") == 9


def test_what_is_not_set_is_left_alone(empty_database: str) -> None:
    said: list[str] = []

    def run(**configured: float) -> list[str]:
        said.clear()
        migrate(empty_database, configured=configured, say=said.append)
        return [line for line in said if "→" in line]

    assert run() == []
    with Db(empty_database) as db:
        assert db.value("SELECT max_concurrent FROM settings") == 20, "the default"
        assert run(max_concurrent=8, max_attempts=5) == [
            "limit 20 → 8, from MAX_CONCURRENT_TASKS",
            "attempts a task 3 → 5, from TASKGATE_MAX_ATTEMPTS",
        ]
        db.set_limit(200)
        assert run() == []
        assert run(max_attempts=5) == []
        assert run(max_concurrent=8) == [], "migrate has seen that before"
        assert db.value("SELECT max_concurrent FROM settings") == 200
        assert run(max_concurrent=9) == ["limit 200 → 9, from MAX_CONCURRENT_TASKS"]
        assert db.value("SELECT max_attempts FROM settings") == 5


def test_several_at_once(empty_database: str) -> None:
    calls = [Background(lambda: migrate(empty_database, configured={"max_concurrent": 5})) for _ in range(4)]
    assert [call.result(120) for call in calls] == [SCHEMA_VERSION] * 4
    with Db(empty_database) as db:
        assert db.enqueue("a") == ["done"]
        assert db.claim().ids == ["a"]
        assert db.value("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0


def test_a_second_schema_beside_the_first(empty_database: str) -> None:
    migrate(empty_database)
    migrate(empty_database, schema="second")
    with Db(empty_database) as first, Db(empty_database, schema="second", functions="taskgate_second") as second:
        first.enqueue("a")
        second.enqueue("b")
        assert first.value("SELECT lock_key()") != second.value("SELECT lock_key()")
        with second.connection.transaction():
            assert second.claim().ids == ["b"]
            assert first.claim().ids == ["a"], "neither waits for the other"
        first.set_limit(0)
        second.enqueue("c")
        assert second.claim("v").ids == ["c"]
        assert first.value("SELECT count(*) FROM public.tasks") == 1
        second.run(
            "INSERT INTO second.tasks (task_id, status, task_type, request) VALUES ('d', 'pending', 'llm', '{}')"
        )
        assert second.claim("u").ids == ["d"]


def test_a_newer_schema_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE taskgate.schema_version SET version = version + 1")
    before = shape(database)
    with pytest.raises(MigrationError, match="upgrade taskgate"):
        migrate(database)
    assert shape(database) == before


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("CREATE TABLE tasks (id serial PRIMARY KEY, title text)", "lacks task_id text"),
        (origin_statements.TABLE.replace("attempts INTEGER NOT NULL DEFAULT 0,", ""), "lacks attempts integer"),
        (origin_statements.TABLE.replace("request JSONB", "request JSON"), "lacks request jsonb"),
        (origin_statements.TABLE.replace("TEXT PRIMARY KEY", "TEXT"), "not its primary key"),
        (
            origin_statements.TABLE + "INSERT INTO tasks (task_id, status) VALUES ('a', 'cancelled')",
            "unknown status 'cancelled'",
        ),
    ],
)
def test_somebody_else_s_table_is_refused_and_nothing_changed(empty_database: str, table: str, words: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(table.encode())
    before = shape(empty_database)
    with pytest.raises(MigrationError, match=words):
        migrate(empty_database)
    assert shape(empty_database) == before


def test_what_was_cut_short_is_finished(database: str) -> None:
    """Killed after the changes and before they were noted; and in the middle of building an index."""
    wanted = shape(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM taskgate._yoyo_migration")
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.idx_tasks_ready'::regclass"
        )
        connection.execute("DROP INDEX public.idx_tasks_due")
    migrate(database)
    assert shape(database) == wanted
    with Db(database) as db:
        assert db.value("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0


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


def test_a_user_id_without_a_name_can_migrate(empty_database: str) -> None:
    """As in a container that runs under any user id: no LOGNAME, and pwd knows nothing of it."""
    program = (
        "import pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "from taskgate.protocol.migrate import migrate\n"
        "migrate(sys.argv[1])\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, empty_database], check=True, timeout=60, env={"PATH": os.environ["PATH"]}
    )
