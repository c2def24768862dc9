"""Workers of one slot whose tasks mostly end at once, so that they claim ahead; now and then one is long."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.go.conftest import build
from tests.go.test_groups import most_at_once
from tests.processes import Table, WorkerProcess, eventually
from tests.worker_fixtures import start_worker, table

__all__ = ["start_worker", "table"]

SOON = 30.0
"""Seconds for what nothing keeps from running: less than an idle worker's poll, so that a lost wake-up is found."""
LONG_SECONDS = 0.3
LATEST_START = """
    SELECT started_at, finished_at FROM tasks
    UNION ALL SELECT started_at, finished_at FROM task_attempts WHERE outcome = 'released'
"""
Fleet = Callable[..., list[WorkerProcess]]


@pytest.fixture(scope="session")
def span_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory, "./internal/span")


@pytest.fixture(params=["go", "python", "both"])
def fleet(request: pytest.FixtureRequest, start_worker: Callable[..., WorkerProcess], span_program: str) -> Fleet:
    """Starts so many workers of one slot."""
    kinds = {"go": [True], "python": [False], "both": [True, False]}[request.param]

    def start(count: int, types: str = "span") -> list[WorkerProcess]:
        started = []
        for n in range(count):
            program = {"app": None, "program": span_program} if kinds[n % len(kinds)] else {}
            always = {
                "TASKGATE_SLOTS": "1",
                "TASKGATE_POLL_SECONDS": "60",
                "TASKGATE_LEASE_SECONDS": "30",
            }
            started.append(start_worker(types, **program, **always))
        return started

    return start


async def started(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        await worker.event("worker_started")


async def add(table: Table, count: int, prefix: str, task_type: str = "span") -> None:
    """Tasks that end at once, in one statement."""
    await table.sql.execute(
        "INSERT INTO tasks (task_id, status, task_type, request)"
        " SELECT $1 || i, 'pending', $2, '{}' FROM generate_series(1, $3::integer) i",
        prefix, task_type, count,
    )  # fmt: skip


async def completed(table: Table, prefix: str, count: int, seconds: float = 90.0) -> None:
    async def probe() -> bool:
        sql = "SELECT count(*) FROM tasks WHERE status = 'completed' AND task_id LIKE $1 || '%'"
        return bool(await table.sql.fetchval(sql, prefix) == count)

    await eventually(f"{count} tasks {prefix}", probe, seconds)


async def rests(table: Table) -> None:
    """Nothing runs, nothing waits."""

    async def probe() -> bool:
        sql = "SELECT NOT EXISTS (SELECT FROM tasks WHERE status IN ('pending', 'running'))"
        return bool(await table.sql.fetchval(sql))

    await eventually("the end of all tasks", probe)


async def test_all_run_once_within_the_limit(table: Table, fleet: Fleet) -> None:
    limit, count = 4, 1200
    await table.calls.set_limit(limit)
    await started(fleet(6))
    ids = [
        each
        for _ in range(count // 60)
        for each in await table.add("span", [{}] * 29 + [{"seconds": LONG_SECONDS}] + [{}] * 30)
    ]
    rows = await table.final(ids)
    assert Counter((row["status"], row["attempts"], row["error"]) for row in rows.values()) == {
        ("completed", 1, None): count
    }
    at_handlers: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in rows.values():
        result = json.loads(row["result"])
        at_handlers[result["worker"]].append((result["begun"], result["ended"]))
    assert [most_at_once(calls) for calls in at_handlers.values()] == [1] * len(at_handlers), "one slot each"
    assert most_at_once([each for calls in at_handlers.values() for each in calls]) <= limit
    held = [
        (each["started_at"].timestamp(), each["finished_at"].timestamp())
        for each in await table.sql.fetch(LATEST_START)
    ]
    assert len(held) >= count
    assert most_at_once(held) <= limit
    released = await table.sql.fetch("SELECT releases, count(*) AS n FROM tasks GROUP BY 1 ORDER BY 1")
    print(
        f"{len(at_handlers)} workers; given back: "
        + ", ".join(f"{row['n']} tasks {row['releases']} times" for row in released)
    )
    assert len(at_handlers) > 1


async def test_a_long_task_does_not_keep_those_claimed_with_it(table: Table, fleet: Fleet, tmp_path: Path) -> None:
    await table.calls.set_limit(20)
    await started(fleet(3))
    for number in range(8):
        await add(table, 100, f"before{number}-")  # so that they claim ahead
        await completed(table, f"before{number}-", 100)
        over = tmp_path / f"over{number}"
        requests: list[Any] = [{"until": str(over)}, *[{}] * 8]
        long, *short = await table.add("span", requests)
        rows = await table.final(short, SOON)
        assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
        await table.running(long)
        over.touch()
        await table.final([long])
    await rests(table)


async def test_at_the_limit_a_long_task_leaves_the_rest_to_others(table: Table, fleet: Fleet, tmp_path: Path) -> None:
    """Each place of the limit but one is free for the others, who wait for room."""
    await table.calls.set_limit(4)
    await started(fleet(6))
    over = tmp_path / "over"
    requests: list[Any] = [{"until": str(over)} if n in (40, 90, 140) else {} for n in range(600)]
    ids = await table.add("span", requests)
    short = [each for each, request in zip(ids, requests, strict=True) if not request]
    rows = await table.final(short)
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert await table.sql.fetchval("SELECT count(*) FROM tasks WHERE status = 'running'") == 3
    over.touch()
    rows = await table.final(ids)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    await rests(table)


async def test_a_task_of_another_type_gets_its_turn(table: Table, fleet: Fleet) -> None:
    """Those who claim ahead leave room for types that they do not serve."""
    await table.calls.set_limit(2)
    await started([*fleet(3), *fleet(1, "other")])
    await add(table, 30_000, "crowd")
    await eventually("the crowd", lambda: some_are_done(table))
    for _ in range(3):
        (task_id,) = await table.add("other", [{}])
        await table.final([task_id], SOON)
        assert await table.sql.fetchval("SELECT EXISTS (SELECT FROM tasks WHERE status = 'pending')"), (
            "before the crowd"
        )


async def some_are_done(table: Table) -> bool:
    return bool(await table.sql.fetchval("SELECT count(*) > 200 FROM tasks WHERE status = 'completed'"))


async def test_a_worker_killed_while_it_holds_more_than_it_runs(table: Table, fleet: Fleet) -> None:
    await table.calls.set_limit(20)
    workers = fleet(2)
    await started(workers)
    await add(table, 6000, "t")
    await eventually("some to be done", lambda: some_are_done(table))
    workers[0].process.kill()
    await asyncio.to_thread(workers[0].process.wait)
    await its_leases_end(table, workers[0])
    await completed(table, "t", 6000)
    counted = await table.sql.fetch("SELECT attempts, count(*) AS n FROM tasks GROUP BY 1 ORDER BY 1")
    assert [row["attempts"] for row in counted] in ([1], [1, 2])
    assert sum(row["n"] for row in counted if row["attempts"] == 2) <= 1, "what had the slot"
    await rests(table)


async def its_leases_end(table: Table, worker: WorkerProcess) -> None:
    """At once, for the test."""
    await table.sql.execute("UPDATE taskgate.server_epoch SET seen_at = '-infinity'")
    await table.sql.execute(
        "UPDATE tasks SET locked_until = now() - interval '1 hour', updated_at = now() - interval '2 hours'"
        " WHERE status = 'running' AND worker_id LIKE '%:' || $1 || ':%'",
        str(worker.pid),
    )


@pytest.mark.parametrize("fleet", ["go", "python"], indirect=True)
async def test_a_task_that_kills_its_workers_uses_up_its_own_attempts(table: Table, fleet: Fleet) -> None:
    """Those that were claimed ahead with it had not begun, or are not known to have: the next time it is on its own."""
    await table.calls.set_limit(40)
    (worker,) = fleet(1)
    await started([worker])
    await add(table, 200, "before")  # so that it claims ahead
    await completed(table, "before", 200)
    requests: list[Any] = [{}] * 300
    ids = await table.add("span", [*requests[:4], {"die": True}, *requests[4:]])
    deaths = 0
    while True:
        await asyncio.to_thread(worker.process.wait)
        deaths += 1
        await its_leases_end(table, worker)
        if deaths == 1:
            held = await table.sql.fetch("SELECT attempts FROM tasks WHERE status = 'running' ORDER BY seq")
            assert len(held) > 1, "it had claimed ahead"
            assert [row["attempts"] for row in held if row["attempts"]] in ([], [1]), "what had the slot"
        used_up = await table.sql.fetchval("SELECT attempts = 3 FROM tasks WHERE task_id = $1", ids[4])
        (worker,) = fleet(1)
        await started([worker])
        if used_up:
            break
    assert deaths in (3, 4), "the first time may not count"
    rows = await table.final(ids)
    poison = rows.pop(ids[4])
    assert (poison["status"], poison["error"], poison["attempts"]) == ("failed", "worker timeout", 3)
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert max(row["attempts"] for row in rows.values()) <= 2, (
        "once at most it stood in the slot, and was not written yet"
    )
    await rests(table)
