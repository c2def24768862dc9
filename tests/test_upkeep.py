"""Recovery and purging beside the real work, through trouble, and what the log says of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, connect, pool
from taskgate.upkeep import DatabaseState, longer, upkeep
from tests.api.api_process import eventually


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await connect(Database(database), "test")
    yield connection
    await connection.close()


async def test_recovers_and_purges_until_stopped(database: str, connection: asyncpg.Connection[Any]) -> None:
    calls = Calls(connection)
    await calls.enqueue([NewTask(f"old{n}", "llm", "{}") for n in range(2500)] + [NewTask("lost", "llm", "{}")])
    await connection.execute("SELECT taskgate.cancel(task_id) FROM tasks WHERE task_id LIKE 'old%'")
    await connection.execute("UPDATE tasks SET expires_at = now() - interval '1 s' WHERE task_id LIKE 'old%'")
    assert (await calls.claim("gone", 1, [], 0.001, None)).tasks
    stop = asyncio.Event()
    with capture_logs() as logs:
        async with pool(Database(database), "upkeep", size=1) as connections:
            running = asyncio.create_task(upkeep(Calls(connections), stop, recover_seconds=0.1, purge_seconds=0.1))

            async def done() -> bool:
                rows = await calls.get(["lost", "old0", "old2499"])
                return list(rows) == ["lost"] and rows["lost"]["status"] == "pending"

            await eventually(done)
            stop.set()
            await asyncio.wait_for(running, 30)
    assert await connection.fetchval("SELECT count(*) FROM tasks") == 1
    assert {"event": "tasks_recovered", "count": 1, "component": "upkeep", "log_level": "info"} in logs
    assert sum(each["count"] for each in logs if each["event"] == "tasks_purged") == 2500


def test_purges_come_more_seldom_while_there_is_nothing_to_delete() -> None:
    pauses = [60.0]
    for _ in range(5):
        pauses.append(longer(pauses[-1]))
    assert pauses == [60, 120, 240, 480, 600, 600]
    assert longer(3600) == 3600, "a longer pause that somebody asked for"


async def test_goes_on_after_the_database_was_gone(database: str, connection: asyncpg.Connection[Any]) -> None:
    name = await connection.fetchval("SELECT current_database()")
    admin = await connect(Database(database.rsplit("/", 1)[0] + "/postgres"), "test")
    stop, state = asyncio.Event(), DatabaseState()
    with capture_logs() as logs:
        async with pool(Database(database), "upkeep", size=1) as connections:
            running = asyncio.create_task(
                upkeep(Calls(connections), stop, state=state, recover_seconds=0.05, purge_seconds=0.05)
            )
            await admin.execute(f'ALTER DATABASE "{name}" CONNECTION LIMIT 0')
            await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)

            async def failed() -> bool:
                return len(logs) >= 2

            await eventually(failed)
            assert not running.done()
            await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1')

            async def works() -> bool:
                again = await connect(Database(database), "test")
                calls = Calls(again)
                await calls.enqueue([NewTask("lost", "llm", "{}")])
                await calls.claim("gone", 1, [], 0.001, None)
                await again.close()
                return True

            await eventually(works)
            await eventually(lambda: _recovered(logs))
            stop.set()
            await asyncio.wait_for(running, 30)
    await admin.close()


async def _recovered(logs: list[Any]) -> bool:
    return any(each["event"] == "tasks_recovered" for each in logs)


def test_trouble_is_said_once() -> None:
    state = DatabaseState()
    with capture_logs() as logs:
        state.back()
        for _ in range(3):
            state.lost(ConnectionRefusedError("no"))
        assert state.is_lost
        for _ in range(3):
            state.back()
        assert not state.is_lost
    assert [each["event"] for each in logs] == ["database_lost", "database_back"]
    assert logs[0]["error"] == "ConnectionRefusedError: no"
    assert logs[1]["seconds"] >= 0


def test_trouble_that_lasts_is_said_again_at_growing_pauses() -> None:
    at = 100.0
    state = DatabaseState("postgresql://u:secret@h:6432/d", clock=lambda: at)
    with capture_logs() as logs:
        while at < 400:
            state.lost(ConnectionRefusedError("no"))
            at += 0.5
        state.back()
        state.lost(ConnectionRefusedError("no"))
    assert [each["seconds"] for each in logs] == [0, 10, 30, 70, 130, 190, 250, 300, 0]
    assert logs[0] == {
        "event": "database_lost",
        "log_level": "warning",
        "component": "upkeep",
        "error": "ConnectionRefusedError: no",
        "host": "h",
        "port": "6432",
        "database": "d",
        "user": "u",
        "seconds": 0,
        "hint": "it goes on trying; if this lasts, check DATABASE_URL",
    }
    assert "secret" not in str(logs)


def test_a_wrong_login_or_database_is_an_error_that_is_said_at_once() -> None:
    at = 100.0
    state = DatabaseState("postgresql://u:secret@h/d", clock=lambda: at)
    with capture_logs() as logs:
        for error in (
            ConnectionRefusedError("no"),
            asyncpg.InvalidPasswordError("wrong"),
            asyncpg.InvalidPasswordError("wrong"),
            ConnectionRefusedError("no"),
            asyncpg.InvalidCatalogNameError("none"),
        ):
            at += 1
            state.lost(error)
        at += 100
        state.lost(asyncpg.InvalidCatalogNameError("none"))
    assert [(each["log_level"], each["error"], each["seconds"]) for each in logs] == [
        ("warning", "ConnectionRefusedError: no", 0),
        ("error", "InvalidPasswordError: wrong", 1),
        ("error", "InvalidCatalogNameError: none", 104),
    ]
    assert [each["hint"] for each in logs[1:]] == ["check DATABASE_URL; it goes on trying"] * 2
