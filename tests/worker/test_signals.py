"""SIGTERM drains, a second signal ends at once; what is not finished is given back without costing an attempt."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.processes import Table, WorkerProcess


async def test_a_drain_finishes_what_runs_and_keeps_its_lease(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    (task_id,) = await table.add("sleep", [{"seconds": 5}])
    worker = start_worker("sleep", TASKGATE_LEASE_SECONDS="1")
    await table.running(task_id)
    worker.send(signal.SIGTERM)
    await worker.event("draining")
    thief = start_worker("sleep", TASKGATE_LEASE_SECONDS="1")
    (later,) = await table.add("sleep", [{"seconds": 0}])
    row = (await table.final([task_id]))[task_id]
    assert (row["status"], row["attempts"]) == ("completed", 1)
    assert await worker.ended() == 0
    assert (await worker.event("worker_started"))["worker_id"] == row["worker_id"]
    assert (await table.final([later]))[later]["worker_id"] == (await thief.event("worker_started"))["worker_id"]
    assert [each["worker_id"] for each in await table.calls.workers()] == [
        (await thief.event("worker_started"))["worker_id"]
    ]


@pytest.mark.parametrize(("task_type", "request_"), [("sleep", {"seconds": 3600}), ("nap", {"seconds": 3600})])
async def test_after_the_grace_the_rest_is_given_back(
    table: Table, start_worker: Callable[..., WorkerProcess], task_type: str, request_: dict[str, float]
) -> None:
    (task_id,) = await table.add(task_type, [request_])
    worker = start_worker(task_type, TASKGATE_GRACE_SECONDS="0.5", TASKGATE_LEASE_SECONDS="60")
    await table.running(task_id)
    worker.send(signal.SIGTERM)
    assert await worker.ended(40) == 0
    row = await table.row(task_id)
    assert (row["status"], row["attempts"], row["releases"]) == ("pending", 0, 1)
    assert (await table.history(task_id))[0] == ("released", "released")


@pytest.mark.parametrize("task_type", ["sleep", "swallow"])
async def test_a_second_signal_stops_at_once(
    table: Table, start_worker: Callable[..., WorkerProcess], task_type: str
) -> None:
    (task_id,) = await table.add(task_type, [{"seconds": 3600}])
    worker = start_worker(task_type, TASKGATE_GRACE_SECONDS="3600", TASKGATE_LEASE_SECONDS="60")
    await table.running(task_id)
    worker.send(signal.SIGTERM)
    await worker.event("draining")
    began = time.monotonic()
    worker.send(signal.SIGINT)
    assert await worker.ended() == 128 + signal.SIGINT
    assert time.monotonic() - began < 30
    await worker.event("stopping_now")
    row = await table.row(task_id)
    assert (row["status"], row["attempts"]) == ("pending", 0)


async def test_an_idle_worker_ends_at_once(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    worker = start_worker("noop", TASKGATE_GRACE_SECONDS="3600")
    await worker.event("worker_started")
    worker.send(signal.SIGINT)
    assert await worker.ended(30) == 0
    assert await table.calls.workers() == []
