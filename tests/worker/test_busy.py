"""What `stats` shows as busy: all that a worker holds, whatever it renews just then."""

from __future__ import annotations

from collections.abc import Callable

from tests.processes import Table, WorkerProcess, eventually


async def test_every_renewal_tells_all_that_is_held(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    worker = start_worker("sleep", TASKGATE_LEASE_SECONDS="600")  # no regular renewal in the time of this test
    await worker.event("worker_started")

    async def seen() -> bool:  # its first sign of life, with nothing held
        return bool(await table.sql.fetchval("SELECT seen_at > started_at FROM taskgate.workers"))

    async def busy() -> int:
        return int(await table.sql.fetchval("SELECT busy FROM taskgate.workers"))

    async def running() -> bool:
        return bool(await table.sql.fetchval("SELECT count(*) = 3 FROM tasks WHERE status = 'running'"))

    await eventually("a sign of life", seen)
    assert await busy() == 0
    first, *_ = await table.add("sleep", [{"seconds": 600}] * 3)
    await eventually("three that run", running)
    await table.sql.fetchval("SELECT taskgate.cancel($1)", first)  # makes it ask for this one, before it ends
    await eventually("a renewal", busy)
    assert await busy() == 3


async def test_a_sign_of_life_tells_what_is_held(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    """With a lease that long the only call is the sign of life, about every 20 s."""
    start_worker("sleep", TASKGATE_LEASE_SECONDS="3600")
    await table.add("sleep", [{"seconds": 600}] * 2 + [{"seconds": 0}])

    async def two() -> bool:
        ended = await table.sql.fetchval("SELECT count(*) FROM tasks WHERE status = 'completed'")
        return bool(ended == 1 and await table.sql.fetchval("SELECT busy FROM taskgate.workers") == 2)

    await eventually("two of three", two)
