"""The plan guard: what each call costs does not depend on the size of the table, on dead rows or on statistics.

A million finished rows, 100,000 waiting, 500,000 dead versions under a pinned snapshot; once with statistics from
before there was anything to do (as every queue has when it fills), once right after ANALYZE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol import big_table, plans
from tests.protocol.tools import Db, until

LIVE = {"idx_tasks_running_token", "idx_tasks_ready", "idx_tasks_due", "tasks_pkey"}
KEY = {"tasks_pkey"}


@dataclass
class Guard:
    db: Db
    explaining: psycopg.Connection[Any]

    def call(self, most: int, indexes: set[str], statement: str, *values: Any) -> list[Any]:
        """Runs it; fails when it reads more than `most` blocks, walks the table or any index but these."""
        found, rows = plans.run(self.explaining, statement, values)
        assert not found.sequential("tasks"), found.sequential("tasks")
        assert found.indexes("tasks") <= indexes, found.costliest()
        assert found.blocks <= most, f"{found.blocks} blocks\n{found.costliest()}"
        return rows

    def running(self, base: int) -> int:
        """A bound that grows with what runs, and with nothing else."""
        return base + 5 * self.db.running()

    def claim(self, worker: str, slots: int) -> list[tuple[str, int]]:
        held = self.db.run("SELECT claim_token FROM tasks WHERE status = 'running' AND worker_id = %s", worker)
        self.db.no_sweep()
        rows = self.call(
            self.running(1000 + 40 * slots),
            LIVE,
            "SELECT task_id, token FROM claim(%s, %s, %s)",
            worker,
            slots,
            [row["claim_token"] for row in held],
        )
        assert len(rows) == slots
        return rows


@pytest.fixture(scope="module")
def guard(either_postgres: EmbeddedPostgres) -> Iterator[Guard]:
    dsn = either_postgres.create_database("big_table")
    migrate(dsn, configured={"max_concurrent": 2000})
    with Db(dsn) as db:
        big_table.fill(db.connection)
        with big_table.pinned_reader(dsn) as reader:
            big_table.churn(db.connection)
            pinned = db.value("SELECT backend_xmin FROM pg_stat_activity WHERE pid = %s", reader.info.backend_pid)
            assert pinned is not None, "the reader holds back vacuum"
            dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'tasks'"
            until(lambda: db.value(dead) >= 2 * big_table.CHURNED, "the dead rows are there")
            with plans.explaining(dsn, "taskgate, public") as explaining:
                yield Guard(db, explaining)
            reader.rollback()
    either_postgres.drop_database("big_table")


@pytest.mark.parametrize("statistics", ["stale", "fresh"])
def test_every_call_is_bounded(guard: Guard, statistics: str) -> None:
    db = guard.db
    if statistics == "fresh":
        db.run("ANALYZE tasks")
    db.claim("first", 1)  # sweeps: after that calls go by the ledger
    plans.run(guard.explaining, "SELECT claim('first', 1)")  # reads the catalogs
    for i in range(8):  # beyond the five plans that are made with the values at hand
        pairs = guard.claim("w", 20)
        guard.claim(f"v{i}", 10)
    ids, tokens = [i for i, _ in pairs], [t for _, t in pairs]
    guard.claim("wide", 200)

    for _ in range(7):
        guard.call(1200, KEY, "SELECT * FROM renew('w', %s, %s, '1 minute')", ids, tokens)
    results = ["{}"] * 20
    done = guard.call(600, KEY, "SELECT outcome FROM complete(%s, %s, %s)", ids[:4], tokens[:4], results[:4])
    assert done == [("done",)] * 4
    again = guard.call(400, KEY, "SELECT outcome FROM complete(%s, %s, %s)", ids[:4], tokens[:4], results[:4])
    assert again == [("already",)] * 4
    fail = "SELECT outcome FROM fail(%s, %s, %s, %s, NULL, %s, NULL)"
    for part in (slice(4, 6), slice(6, 8)):
        assert (
            guard.call(600, KEY, fail, ids[part], tokens[part], ["e"] * 2, ["c"] * 2, [part.start == 4] * 2)
            == [("done",)] * 2
        )
    release = "SELECT outcome FROM release(%s, %s, NULL, NULL, NULL, NULL)"
    assert guard.call(600, KEY, release, ids[8:10], tokens[8:10]) == [("done",)] * 2
    guard.call(100, KEY, "SELECT checkpoint(%s, %s, '{}')", ids[10], tokens[10])
    guard.call(100, KEY, "SELECT cancel(%s)", ids[10])
    waiting = f"pending-{90_000 + (statistics == 'fresh'):09}"
    assert guard.call(100, KEY, "SELECT cancel(%s)", waiting) == [("cancelled",)]
    assert guard.call(300, KEY, "SELECT retry(%s)", waiting) == [("done",)]
    guard.call(300, KEY, "SELECT * FROM claimed_bodies(%s, %s)", ids, tokens)

    db.age(120, *ids[12:])
    db.run("UPDATE server_epoch SET seen_at = '-infinity'")
    db.no_sweep()
    expected = LIVE | {"idx_tasks_start_before"}
    assert guard.call(guard.running(1000), expected, "SELECT recover()") == [(8,)]
    db.no_sweep()
    assert guard.call(guard.running(1000), expected, "SELECT recover()") == [(0,)]

    db.run(
        "UPDATE tasks SET expires_at = now() - interval '1 hour' WHERE task_id BETWEEN %s AND %s",
        f"finished-{1000 if statistics == 'stale' else 2000:09}",
        f"finished-{1099 if statistics == 'stale' else 2099:09}",
    )
    purge = guard.call(4000, KEY | {"idx_tasks_expires_at"}, "SELECT purge(60)")
    assert purge == [(60,)]
    guard.call(4000, KEY | {"idx_tasks_expires_at"}, "SELECT purge(60)")

    enqueue = "SELECT enqueue(ARRAY['new-1', NULL], ARRAY['llm', 'llm'], ARRAY['{}', '{}'])"
    guard.call(500, KEY, enqueue)


@pytest.mark.parametrize("statistics", ["stale", "fresh"])
def test_reading_is_bounded(guard: Guard, statistics: str) -> None:
    if statistics == "fresh":
        guard.db.run("ANALYZE tasks")
    ids = ["finished-000000001", "pending-000050000", "unknown", *(f"finished-{i:09}" for i in range(7000, 7050))]
    assert len(_query(guard, "get", 400, KEY, [ids, None, True, None])) == 52
    page = {"idx_tasks_tenant_seq"}
    newest = [None, None, None, None, None, None, 50, False]
    assert len(_query(guard, "list", 400, page, newest)) == 50
    middle = ["", "completed", "llm", None, None, 500_000, 50, True]
    assert len(_query(guard, "list", 400, page, middle)) == 50


def _query(guard: Guard, name: str, most: int, indexes: set[str], values: list[Any]) -> list[Any]:
    """One of the read queries, prepared with its parameters as drivers do."""
    text = (files("taskgate.protocol") / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    raw = psycopg.RawCursor(guard.explaining)
    guard.explaining.execute("SET plan_cache_mode = force_generic_plan")
    try:
        found = plans.Plans()
        with plans.collecting(guard.explaining, found):
            raw.execute(text.encode(), values, prepare=True)
            rows = raw.fetchall()
    finally:
        guard.explaining.execute("RESET plan_cache_mode")
    assert not found.sequential("tasks"), found.texts
    assert found.indexes("tasks") <= indexes
    assert found.blocks <= most, f"{name}: {found.blocks} blocks\n{found.costliest()}"
    return rows


def test_the_guard_sees_a_bad_plan(guard: Guard) -> None:
    """What the guard is for: a look-up in the words of the wrong index walks dead rows, and it is told."""
    with pytest.raises(AssertionError):
        guard.call(
            1000,
            LIVE,
            "SELECT count(*) FROM tasks WHERE status = 'running' AND request IS NOT NULL AND locked_until < now()",
        )


def test_an_idempotency_key_is_looked_up(guard: Guard) -> None:
    once = "SELECT task_id, outcome FROM enqueue_once(%s, 'f', NULL, 'llm', '{}')"
    (first,) = guard.call(3000, KEY, once, "k")
    (again,) = guard.call(1000, KEY, once, "k")
    assert tuple(again) == (first[0], "replayed")


def test_a_large_directory_with_a_full_group_in_front(guard: Guard) -> None:
    """1,000 tenants × 50 models; the first of these, of the highest priority, is full, with a long line a tenant."""
    db = guard.db
    db.run("SELECT set_limit('model', 'm0', 1), set_limit('tenant', '*', 5)")
    big_table.fill_groups(db.connection)
    plans.run(guard.explaining, "SELECT claim('warm', 1, '{}', '1 minute', '{grouped}')")
    held: list[int] = []
    for slots in (1, 1, 20, 1, 20):
        db.no_sweep()
        rows = guard.call(
            guard.running(1500 + 60 * slots) + guard.running(0),  # what runs is looked up twice, for the groups
            LIVE,
            "SELECT task_id, token FROM claim('many', %s, %s, '1 minute', '{grouped}')",
            slots,
            held,
        )
        assert len(rows) == slots
        held += [token for _, token in rows]
    assert db.value("SELECT count(*) FROM tasks WHERE status = 'running' AND model = 'm0'") == 1
    db.run("SELECT remove_limit('model', 'm0'), remove_limit('tenant', '*')")
