"""Workers that are killed, and tasks whose workers are gone."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from tests.processes import Table, WorkerProcess, eventually

SETTINGS = {"TASKGATE_LEASE_SECONDS": "2", "TASKGATE_SLOTS": "4"}


async def test_killed_at_random_nothing_is_lost_and_nothing_done_twice(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    await table.calls.set_limit(7)
    pick = random.Random(7)
    async with FakeProvider(FakeProviderOptions(latency=0.1)) as provider:
        ids = await table.add("call", [{"prompt": f"n {n}"} for n in range(250)], max_attempts=50)
        workers = [start_worker("call", TEST_PROVIDER=provider.url, **SETTINGS) for _ in range(3)]
        watching = asyncio.create_task(table.final(ids))
        killed = 0
        while not watching.done():
            victim = pick.choice(workers)
            if killed < 6 and victim.events("worker_started"):
                await asyncio.sleep(pick.uniform(0.0, 0.3))
                victim.send(signal.SIGKILL)
                workers.remove(victim)
                workers.append(start_worker("call", TEST_PROVIDER=provider.url, **SETTINGS))
                killed += 1
            await asyncio.sleep(0.3)
        rows = await watching
        stats = provider.journal.stats()
    assert killed == 6
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert stats["max_in_flight"] <= 7
    assert stats["requests"] >= 250
    interrupted = 0
    for task_id, row in rows.items():
        story = await table.history(task_id)
        assert [outcome for outcome, _ in story].count("completed") == 1
        assert story[-1] == ("completed", None)
        assert set(story[:-1]) <= {("lost", "worker_timeout")}
        assert len(story) == row["attempts"]
        interrupted += len(story) - 1
    assert interrupted >= 1, "at least one of six kills hit a running task"


async def _take_and_die(table: Table, start_worker: Callable[..., WorkerProcess]) -> str:
    """A task whose worker was killed."""
    (task_id,) = await table.add("sleep", [{"seconds": 3600}])
    victim = start_worker("sleep", **SETTINGS)
    await table.running(task_id)
    victim.send(signal.SIGKILL)
    return task_id


async def _is_taken_back(table: Table, task_id: str) -> None:
    async def probe() -> bool:
        return bool((await table.row(task_id))["status"] == "pending")

    await eventually("recovery", probe)
    assert (await table.history(task_id))[0] == ("lost", "worker_timeout")


async def test_recovery_at_limit_zero(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    task_id = await _take_and_die(table, start_worker)
    await table.calls.set_limit(0)
    start_worker("noop", **SETTINGS)
    await _is_taken_back(table, task_id)


async def test_recovery_with_every_slot_busy(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    task_id = await _take_and_die(table, start_worker)
    (busy,) = await table.add("nap", [{"seconds": 3600}])
    worker = start_worker("nap", **SETTINGS | {"TASKGATE_SLOTS": "1"})
    await table.running(busy)
    await _is_taken_back(table, task_id)
    await worker.event("tasks_recovered")  # it does not claim, so its periodic recovery was it
    assert (await table.row(busy))["status"] == "running"
