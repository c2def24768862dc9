"""Handlers that block the event loop, or do not stop when told to; and cancellation of those that do."""

from __future__ import annotations

import json
from collections.abc import Callable

from taskgate.local.fake_provider import FakeProvider
from tests.processes import Table, WorkerProcess, eventually


async def test_a_handler_that_blocks_the_loop_for_twice_the_lease(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    (task_id,) = await table.add("block", [{"seconds": 5}])
    worker = start_worker("block,noop", TASKGATE_LEASE_SECONDS="2")
    await table.running(task_id)
    other = start_worker("block", TASKGATE_LEASE_SECONDS="2")
    row = (await table.final([task_id]))[task_id]
    assert (row["status"], row["attempts"]) == ("completed", 1), "its lease was kept by a thread of its own"
    assert (await worker.event("worker_started"))["worker_id"] == row["worker_id"]
    assert (await worker.event("handler_blocked_loop"))["seconds"] > 1
    (after,) = await table.add("noop", [{}])
    assert (await table.final([after]))[after]["status"] == "completed"
    assert other.process.poll() is None


async def test_a_handler_that_swallows_its_cancellation(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    (stuck,) = await table.add("swallow", [{"seconds": 12}], timeout_seconds=1, max_attempts=1)
    worker = start_worker("swallow,noop", TASKGATE_SLOTS="1", TASKGATE_LEASE_SECONDS="2")
    await table.running(stuck)
    (waiting,) = await table.add("noop", [{}])
    event = await worker.event("handler_stuck")
    assert event["task_id"] == stuck
    row = (await table.final([stuck]))[stuck]
    assert (row["status"], row["error_code"], row["attempts"]) == ("failed", "timeout", 1)
    assert (await table.row(waiting))["status"] == "pending", "the slot stays counted while the call runs"
    done = (await table.final([waiting]))[waiting]
    held = await table.sql.fetchval(
        "SELECT extract(epoch FROM b.started_at - a.started_at)::float8 FROM tasks a, tasks b"
        " WHERE a.task_id = $1 AND b.task_id = $2",
        stuck,
        waiting,
    )
    assert done["status"] == "completed"
    assert held >= 11.5, "the waiting task began when the stuck handler had ended"
    assert (await table.row(stuck))["status"] == "failed", "its late result changed nothing"


async def test_a_live_cancellation_stops_the_call(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    async with FakeProvider() as provider:
        (task_id,) = await table.add("call", [{"prompt": "[[fault:hang]]"}])
        (sync,) = await table.add("nap", [{"seconds": 3600, "looks": True}])
        worker = start_worker("call,nap", TEST_PROVIDER=provider.url, TASKGATE_LEASE_SECONDS="600")

        async def called() -> bool:
            return provider.journal.in_flight == 1

        await eventually("the call", called)
        await table.running(sync)
        for each in (task_id, sync):
            assert await table.calls.cancel(each) == "cancelling"
        # with a lease of 600 s the next regular renewal is minutes away: only the notification can be so quick
        rows = await table.final([task_id, sync], seconds=30)
        assert {(row["status"], row["error"]) for row in rows.values()} == {("failed", "cancelled")}
        assert provider.journal.closed_by_client == 1
        await worker.event("task_cancelled", count=2)


async def test_a_row_that_somebody_locks_delays_no_other(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    ids = await table.add("sleep", [{"seconds": 1}] * 4)
    start_worker("sleep", TASKGATE_LEASE_SECONDS="5")
    for task_id in ids:
        await table.running(task_id)
    operator = await Table.open(table.dsn)
    transaction = operator.sql.transaction()
    await transaction.start()
    await operator.sql.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", ids[1])
    rows = await table.final([ids[0], ids[2], ids[3]])
    assert {row["attempts"] for row in rows.values()} == {1}
    assert (await table.row(ids[1]))["status"] == "running"
    await transaction.rollback()
    operator.sql.terminate()
    row = (await table.final([ids[1]]))[ids[1]]
    assert json.loads(row["result"]).startswith("slept")
