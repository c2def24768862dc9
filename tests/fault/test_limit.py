"""The limit of the whole fleet, seen at the provider and in the rows' own times; changed live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from tests.processes import Table, WorkerProcess, eventually


async def test_six_processes_never_exceed_the_limit(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    await table.calls.set_limit(7)
    async with FakeProvider(FakeProviderOptions(latency=0.05)) as provider:
        ids = await table.add("call", [{"prompt": f"n {n}"} for n in range(500)])
        for _ in range(6):
            start_worker("call", TEST_PROVIDER=provider.url)
        in_transaction = 0
        watching = asyncio.create_task(table.final(ids))
        watcher = await Table.open(table.dsn)
        while not watching.done():
            in_transaction += await watcher.sql.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'taskgate worker%'"
                " AND state LIKE 'idle in transaction%' AND datname = current_database()"
            )
            await asyncio.sleep(0.05)
        watcher.sql.terminate()
        rows = await watching
        stats = provider.journal.stats()
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert stats["max_in_flight"] == 7
    assert stats["requests"] == 500
    assert await table.most_at_once() == 7
    assert in_transaction == 0


async def test_a_limit_changed_live_is_obeyed_within_two_seconds(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    await table.calls.set_limit(7)
    await table.add("sleep", [{"seconds": 0.3}] * 2000)
    workers = [start_worker("sleep") for _ in range(3)]

    async def running() -> int:
        return int(await table.sql.fetchval("SELECT count(*) FROM tasks WHERE status = 'running'"))

    async def runs(number: int) -> None:
        async def probe() -> bool:
            return await running() == number

        await eventually(f"{number} tasks to run", probe)

    async def obeyed(limit: int) -> float:
        """Set the limit, then look from two seconds later on: seconds until it was in full use."""
        await table.calls.set_limit(limit)
        set_at = await table.sql.fetchval("SELECT clock_timestamp()")
        await runs(limit)
        took = await table.sql.fetchval("SELECT extract(epoch FROM clock_timestamp() - $1)::float8", set_at)
        for _ in range(20):
            assert await running() <= limit
            await asyncio.sleep(0.05)
        return float(took)

    await runs(7)
    assert await obeyed(3) < 2 + 0.3
    assert await obeyed(0) < 2 + 0.3
    started = await table.sql.fetchval("SELECT max(started_at) FROM tasks")
    await asyncio.sleep(1)
    assert started == await table.sql.fetchval("SELECT max(started_at) FROM tasks"), "nothing starts at limit 0"
    assert await obeyed(12) < 2
    assert await table.most_at_once() <= 12
    assert all(worker.process.poll() is None for worker in workers)
