"""PostgreSQL crashes between a claim and the flush that makes it count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.processes import Table, WorkerProcess, eventually

LIMIT = 5
FLUSH_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%flush()%'"


@contextmanager
def durable(folder: Path, **settings: str) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(folder, port=0, settings={"fsync": "on", "synchronous_commit": "on", **settings}) as server:
        fleet = {"max_concurrent": LIMIT, "max_attempts": 10, "max_throttle": 60, "result_ttl": 3600}
        migrate(server.dsn, configured=fleet)
        yield server


@contextmanager
def go_worker(program: str, server: EmbeddedPostgres, provider: FakeProvider) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(
        server.dsn,
        "llm",
        app=None,
        program=program,
        OPENAI_API_KEY="key",
        TASKGATE_LLM_MODEL="small",
        OPENAI_BASE_URL=f"{provider.url}/v1",
        TASKGATE_SLOTS="1",
        TASKGATE_POLL_SECONDS="1",
    )
    try:
        yield worker
    finally:
        worker.close()


async def test_no_call_starts_before_its_claim_is_flushed(server_folder: Path, go_program: str) -> None:
    with durable(server_folder) as server:
        async with FakeProvider(FakeProviderOptions(latency=0.01)) as provider:
            with go_worker(go_program, server, provider) as worker:
                await worker.event("worker_started")
                table = await Table.open(server.dsn)
                # a commit that is to be on disk waits for a standby that is not there
                await table.sql.execute("SET synchronous_commit = local")
                await table.sql.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                await table.sql.execute("SELECT pg_reload_conf()")

                async def heeded() -> bool:
                    return bool(await table.sql.fetchval("SHOW synchronous_standby_names") == "nobody")

                await eventually("the setting", heeded)
                (task_id,) = await table.add("llm", [{"prompt": "Hello"}])

                async def waits() -> int:
                    return int(await table.sql.fetchval(FLUSH_WAITS))

                await eventually("a flush that waits", waits)
                assert provider.journal.stats()["requests"] == 0
                await table.sql.execute("ALTER SYSTEM RESET synchronous_standby_names")
                table.sql.terminate()
                await asyncio.to_thread(server.restart, "immediate")
                table = await Table.open(server.dsn)
                row = (await table.final([task_id]))[task_id]
                table.sql.terminate()
            assert (row["status"], row["attempts"], row["error"]) == ("completed", 1, None)
            assert provider.journal.stats()["requests"] == 1


async def test_crashes_under_load_lose_nothing_and_keep_the_limit(server_folder: Path, go_program: str) -> None:
    # each flush gathers for 20 ms, so a crash finds claims that are not on disk
    with durable(server_folder, commit_delay="20000", commit_siblings="0", wal_writer_delay="10s") as server:
        async with FakeProvider(FakeProviderOptions(latency=0.1)) as provider:
            with ExitStack() as stack:
                workers = [stack.enter_context(go_worker(go_program, server, provider)) for _ in range(LIMIT + 3)]
                for worker in workers:
                    await worker.event("worker_started")
                table = await Table.open(server.dsn)
                ids = await table.add("llm", [{"prompt": f"n {n}"} for n in range(200)])
                table.sql.terminate()
                for crash in range(1, 4):

                    async def more(crash: int = crash) -> bool:
                        return bool(provider.journal.stats()["requests"] >= 40 * crash)

                    await eventually("more calls", more)
                    await asyncio.to_thread(server.restart, "immediate")
                table = await Table.open(server.dsn)
                rows = await table.final(ids)
                table.sql.terminate()
                assert all(worker.process.poll() is None for worker in workers)
            assert {row["status"] for row in rows.values()} == {"completed"}
            assert provider.journal.stats()["max_in_flight"] <= LIMIT
