"""A worker that cannot reach the database any more, while its call runs."""

from __future__ import annotations

from collections.abc import Callable

from taskgate.local.fake_provider import FakeProvider
from tests.fault.silent_proxy import SilentProxy
from tests.processes import Table, WorkerProcess, eventually


async def test_the_call_is_stopped_before_the_lease_ends(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    async with SilentProxy(table.dsn) as proxy, FakeProvider() as provider:
        (task_id,) = await table.add("call", [{"prompt": "[[fault:hang times=1]]"}])
        worker = start_worker("call", dsn=proxy.url, TEST_PROVIDER=provider.url)

        async def called() -> bool:
            return provider.journal.in_flight == 1

        await eventually("the call", called)
        renewed = (await table.sql.fetchrow("SELECT locked_until FROM tasks WHERE task_id = $1", task_id))[0]

        async def renewed_again() -> bool:
            return bool(await table.sql.fetchval("SELECT locked_until > $1 FROM tasks", renewed))

        await eventually("a renewal", renewed_again)
        proxy.swallow()

        async def closed() -> bool:
            return provider.journal.in_flight == 0

        await eventually("the call to be stopped", closed)
        assert provider.journal.closed_by_client == 1
        early = await table.sql.fetchval(
            "SELECT clock_timestamp() < locked_until FROM tasks WHERE task_id = $1", task_id
        )
        assert early, "stopped before the lease ended, by the database's own clock"
        assert (await worker.event("lease_lost"))["reason"] == "not_renewed"
        proxy.restore()
        row = (await table.final([task_id]))[task_id]
        assert row["status"] == "completed"
        assert len(worker.events("database_lost")) >= 1
        await worker.event("database_back")
    assert provider.journal.requests == 2
