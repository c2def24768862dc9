"""PostgreSQL is stopped as by a crash, again and again, under submissions and executions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import asyncpg

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import DATABASE_ERRORS, Database, pool
from taskgate.protocol.migrate import migrate
from tests.processes import Table, WorkerProcess, eventually


async def test_every_acknowledged_task_is_there_and_ends(
    server_folder: Path, start_worker: Callable[..., WorkerProcess]
) -> None:
    server = EmbeddedPostgres(server_folder, port=0, settings={"fsync": "on", "synchronous_commit": "on"})
    with server:
        migrate(
            server.dsn, configured={"max_concurrent": 20, "max_attempts": 10, "max_throttle": 60, "result_ttl": 3600}
        )
        settings = {"TASKGATE_LEASE_SECONDS": "2", "TASKGATE_POLL_SECONDS": "1"}
        workers = [start_worker("sleep", dsn=server.dsn, **settings) for _ in range(2)]
        for worker in workers:
            await worker.event("worker_started")
        acknowledged: list[str] = []
        over = asyncio.Event()
        submitting = [asyncio.create_task(_submit(server.dsn, acknowledged, over)) for _ in range(3)]
        for _ in range(3):
            before = len(acknowledged)

            async def more(before: int = before) -> bool:
                return len(acknowledged) >= before + 30

            await eventually("more submissions", more)
            await asyncio.to_thread(server.restart, "immediate")
        over.set()
        await asyncio.gather(*submitting)
        table = await Table.open(server.dsn)
        rows = await table.calls.get(acknowledged)
        assert set(acknowledged) == set(rows), "a task that was acknowledged is lost"
        rows = await table.final(acknowledged)
        assert {row["status"] for row in rows.values()} == {"completed"}
        table.sql.terminate()
        assert all(worker.process.poll() is None for worker in workers)
        assert any(worker.events("database_lost") for worker in workers)
        for worker in workers:
            worker.close()


async def _submit(dsn: str, acknowledged: list[str], over: asyncio.Event) -> None:
    async with pool(Database(dsn), "test submitting", size=1, command_timeout=10) as connections:
        calls = Calls(connections)
        while not over.is_set():
            task_id = uuid.uuid4().hex
            try:
                await calls.enqueue([NewTask(task_id, "sleep", '{"seconds": 0.05}')])
            except (*DATABASE_ERRORS, asyncpg.PostgresError):
                await asyncio.sleep(0.05)
            else:
                acknowledged.append(task_id)
                await asyncio.sleep(0.01)
