"""Handlers that block the event loop for ever: the process ends by itself, and hears signals all the while."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from tests.fault.silent_proxy import SilentProxy
from tests.processes import Table, WorkerProcess, eventually

BLOCKED = 70


async def test_it_ends_after_the_time_limit_and_another_worker_recovers(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    (task_id,) = await table.add("spin", [{}], timeout_seconds=1, max_attempts=2)
    first = start_worker("spin", TASKGATE_LEASE_SECONDS="2")
    await table.running(task_id)
    assert await first.ended() == BLOCKED
    event = first.events("handler_blocked_loop")[-1]
    assert event["exit_code"] == BLOCKED
    assert event["seconds"] > 10
    assert [each["task_id"] for each in event["running"]] == [task_id]
    start_worker("spin", TASKGATE_LEASE_SECONDS="2")
    row = (await table.final([task_id]))[task_id]
    assert (json.loads(row["result"]), row["attempts"]) == ("no more", 2)
    assert (await table.history(task_id))[0] == ("lost", "worker_timeout")


@pytest.mark.parametrize("task_type", ["spin", "block"])
async def test_a_signal_ends_it_after_the_grace(
    table: Table, start_worker: Callable[..., WorkerProcess], task_type: str
) -> None:
    (task_id,) = await table.add(task_type, [{"seconds": 3600}])
    worker = start_worker(task_type, TASKGATE_LEASE_SECONDS="60", TASKGATE_GRACE_SECONDS="1")
    await table.running(task_id)
    worker.send(signal.SIGTERM)
    assert await worker.ended(60) == BLOCKED
    assert worker.events("handler_blocked_loop")[-1]["exit_code"] == BLOCKED


@pytest.mark.parametrize("task_type", ["spin", "block"])
async def test_a_second_signal_ends_it_at_once(
    table: Table, start_worker: Callable[..., WorkerProcess], task_type: str
) -> None:
    (task_id,) = await table.add(task_type, [{"seconds": 3600}])
    worker = start_worker(task_type, TASKGATE_LEASE_SECONDS="60", TASKGATE_GRACE_SECONDS="3600")
    await table.running(task_id)
    worker.send(signal.SIGTERM)
    time.sleep(0.2)  # noqa: ASYNC251  the kernel merges signals that are not taken yet
    worker.send(signal.SIGINT)
    assert await worker.ended(60) == 128 + signal.SIGINT


async def one_that_blocks_and_eight_behind(table: Table, seconds: int) -> None:
    """`long`, and `short1` to `short8`, in one statement, for a worker whose last tasks were short."""
    await table.final(await table.add("noop", [{}] * 200))
    await table.sql.execute(
        "INSERT INTO tasks (task_id, status, task_type, request)"
        " SELECT 'long', 'pending', 'block', jsonb_build_object('seconds', $1::integer)"
        " UNION ALL SELECT 'short' || i, 'pending', 'noop', '{}' FROM generate_series(1, 8) i",
        seconds,
    )


async def test_what_waits_behind_it_for_a_slot_goes_to_others(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    """The worker's tasks were short, so it has claimed ahead; its timer does not run while the loop is blocked."""
    always = {"TASKGATE_SLOTS": "1", "TASKGATE_LEASE_SECONDS": "6", "TASKGATE_POLL_SECONDS": "60"}
    blocked = start_worker("noop,block", **always)
    await blocked.event("worker_started")
    await one_that_blocks_and_eight_behind(table, 12)
    short = [f"short{i}" for i in range(1, 9)]
    await table.running("long")
    assert await table.sql.fetchval("SELECT count(*) FROM tasks WHERE status = 'running'") > 1, "it has claimed ahead"
    start_worker("noop,block", **always)
    rows = await table.final(short)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert (await table.sql.fetchval("SELECT status FROM tasks WHERE task_id = 'long'")) == "running"
    given_back = "SELECT error FROM task_history WHERE outcome = 'released' LIMIT 1"
    assert await table.sql.fetchval(given_back) == "the event loop is blocked"
    assert json.loads((await table.final(["long"]))["long"]["result"]) == "blocked"
    blocked.send(signal.SIGTERM)
    assert await blocked.ended(60) == 0, "it goes on as before, and holds nothing"


async def test_a_cancellation_does_not_count_what_waits_behind_it(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    """It has the leases renewed, but not of what has not begun: that costs nothing when the worker is killed."""
    worker = start_worker("noop,block", TASKGATE_SLOTS="1", TASKGATE_LEASE_SECONDS="60", TASKGATE_POLL_SECONDS="60")
    await worker.event("worker_started")
    await one_that_blocks_and_eight_behind(table, 3600)
    await table.running("long")
    before = await table.sql.fetchval("SELECT locked_until FROM tasks WHERE task_id = 'long'")
    assert await table.calls.cancel("long") == "cancelling"

    async def renewed() -> bool:
        sql = "SELECT locked_until > $1 FROM tasks WHERE task_id = 'long'"
        return bool(await table.sql.fetchval(sql, before))

    await eventually("the renewal", renewed)
    held = "SELECT attempts FROM tasks WHERE status = 'running' AND task_id <> 'long'"
    attempts = [row["attempts"] for row in await table.sql.fetch(held)]
    assert len(attempts) >= 8
    assert set(attempts) == {0}


async def test_a_drain_does_not_wait_for_a_database_that_stands_still(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    async with SilentProxy(table.dsn) as proxy:
        (short, long) = await table.add("sleep", [{"seconds": 2}, {"seconds": 3600}])
        worker = start_worker("sleep", dsn=proxy.url, TASKGATE_LEASE_SECONDS="60", TASKGATE_GRACE_SECONDS="4")
        await table.running(short)
        await table.running(long)
        proxy.swallow()
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        assert await worker.ended(60) == 0
        assert time.monotonic() - began < 4 + 9, "the grace, and a few seconds"
