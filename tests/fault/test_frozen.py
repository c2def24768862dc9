"""A worker that stands still past its lease and then goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from tests.processes import Table, WorkerProcess, eventually

LOCK = "SELECT pg_advisory_xact_lock(8386110886273709157)"
RECOVER = """
UPDATE tasks SET status = 'pending', locked_until = NULL, updated_at = now()
WHERE status = 'running' AND locked_until < now() AND attempts < 3
"""
CLAIM = """
UPDATE tasks SET status = 'running', attempts = attempts + 1, updated_at = now(),
                 locked_until = now() + interval '1 minute'
WHERE task_id = (SELECT task_id FROM tasks WHERE status = 'pending' AND request IS NOT NULL
                 ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING task_id
"""
FINISH = "UPDATE tasks SET status = 'completed', result = '\"by SQL\"', updated_at = now() WHERE task_id = $1"


async def _frozen(table: Table, start_worker: Callable[..., WorkerProcess]) -> tuple[WorkerProcess, str]:
    (task_id,) = await table.add("nap", [{"seconds": 1}])
    worker = start_worker("nap", TASKGATE_LEASE_SECONDS="2")
    await table.running(task_id)
    worker.send(signal.SIGSTOP)
    return worker, task_id


async def _heard(frozen: WorkerProcess) -> None:
    """It was told that the task is not its own any more: by its renewal or, if that came later, by its result."""

    async def told() -> bool:
        return bool(frozen.events("result_refused") or frozen.events("lease_lost"))

    await eventually("the frozen worker to hear of it", told)


async def test_its_late_result_is_refused(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    frozen, task_id = await _frozen(table, start_worker)
    second = start_worker("nap", TASKGATE_LEASE_SECONDS="2")
    row = (await table.final([task_id]))[task_id]
    assert json.loads(row["result"]) == "napped, attempt 2"
    frozen.send(signal.SIGCONT)
    await _heard(frozen)
    after = await table.row(task_id)
    assert (after["result"], after["worker_id"]) == (row["result"], row["worker_id"])
    assert (await second.event("worker_started"))["worker_id"] == after["worker_id"]
    assert await table.history(task_id) == [("lost", "worker_timeout"), ("completed", None)]
    (later,) = await table.add("nap", [{"seconds": 0}])
    assert (await table.final([later]))[later]["status"] == "completed"


async def test_also_when_a_worker_that_knows_only_sql_took_the_task(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    frozen, task_id = await _frozen(table, start_worker)

    async def taken() -> bool:
        async with table.sql.transaction():
            await table.sql.execute(LOCK)
            await table.sql.execute(RECOVER)
            return bool(await table.sql.fetchval(CLAIM) == task_id)

    await eventually("the lease to end", taken, every=0.2)
    frozen.send(signal.SIGCONT)
    await _heard(frozen)
    assert (await table.row(task_id))["status"] == "running", "the late result changed nothing"
    await table.sql.execute(FINISH, task_id)
    row = await table.row(task_id)
    assert (row["status"], json.loads(row["result"])) == ("completed", "by SQL")
