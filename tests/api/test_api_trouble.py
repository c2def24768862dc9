"""The database goes away, in every way: what was answered with 202 is there, and nothing needs a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest

from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import Database, connect
from tests.api.api_process import ApiProcess, eventually
from tests.api.cut_proxy import CutProxy

BODY = {"prompt": "x"}
KILL_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'taskgate api' AND datname = current_database()"
)
KILL_WAITING = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'taskgate api'"
    " AND datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%enqueue%'"
)


async def all_ids(calls: Calls) -> set[str]:
    ids: set[str] = set()
    below: int | None = None
    while rows := await calls.page(limit=500, below=below):
        ids |= {row["task_id"] for row in rows}
        below = rows[-1]["seq"]
    return ids


@pytest.fixture
async def killer(database: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection that is in no transaction: in one, pg_stat_activity shows the queries of the first look for ever,
    and no session that came later.
    """
    connection = await connect(Database(database), "test killer")
    yield connection
    await connection.close()


async def test_connections_killed_in_mid_batch(
    api: ApiProcess, connection: asyncpg.Connection[Any], killer: asyncpg.Connection[Any], calls: Calls
) -> None:
    accepted: set[str] = set()
    uncertain: set[str] = set()
    stop = asyncio.Event()

    async def submit(client: httpx2.AsyncClient) -> None:
        while not stop.is_set():
            answer = await client.post("/tasks", json=BODY)
            assert answer.status_code in (202, 503), answer.text
            (accepted if answer.status_code == 202 else uncertain).add(answer.json()["task_id"])

    async with api.client() as client, asyncio.TaskGroup() as posting:
        for _ in range(10):
            posting.create_task(submit(client))
        killed = 0
        for turn in range(12):
            before = len(accepted)
            if turn % 2:
                # some insert is surely under way, and cannot end before the kill
                async with connection.transaction():
                    await connection.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
                    if turn % 4 == 3:
                        await killer.fetch(KILL_ALL)  # it comes on a connection that is newer than the lock
                    killed += await eventually(lambda: killer.fetchval(KILL_WAITING))
            else:
                await killer.fetch(KILL_ALL)  # at any moment, that of the commit included

            async def went_on(before: int = before) -> bool:
                return len(accepted) > before + 20

            await eventually(went_on)
        stop.set()
    assert killed >= 6
    ids = await all_ids(calls)
    assert accepted <= ids
    assert ids <= accepted | uncertain


async def test_a_reply_lost_at_commit_is_told_from_a_lost_insert(database: str, calls: Calls) -> None:
    async with CutProxy(database) as proxy, ApiProcess(proxy.url) as api, api.client() as client:
        assert (await client.post("/tasks", json=BODY)).status_code == 202
        proxy.lose_reply_to(b"the-reply-is-lost")
        answer = await client.post("/tasks", json={"prompt": "the-reply-is-lost"})
        assert proxy.lost.is_set()
        assert answer.status_code == 202
        assert (await client.get(f"/tasks/{answer.json()['task_id']}")).json()["status"] == "pending"
        # the same for many, whose transaction ends with COMMIT
        proxy.lose_reply_to(b"COMMIT")
        answer = await client.post("/tasks", json=[BODY, BODY])
        assert proxy.lost.is_set()
        assert answer.status_code == 202
        assert len(answer.json()) == 2
    assert len(await all_ids(calls)) == 4


async def test_database_down_and_back(database: str, calls: Calls) -> None:
    async with CutProxy(database) as proxy, ApiProcess(proxy.url) as api:
        async with api.client() as client:
            first = await client.post("/tasks", json=BODY)
            assert first.status_code == 202
            await proxy.cut()
            answers = await asyncio.gather(*(client.post("/tasks", json=BODY) for _ in range(10)))
            for answer in answers:
                assert answer.status_code == 503, answer.text
                assert answer.json()["code"] == "database_unavailable"
                assert answer.headers["retry-after"].isdigit()
                assert answer.json()["task_id"] in answer.json()["detail"]
            for method, path in [
                ("GET", "/tasks/x"),
                ("GET", "/tasks/x?wait=5"),
                ("GET", "/tasks"),
                ("POST", "/tasks/x/cancel"),
                ("POST", "/tasks/x/retry"),
                ("GET", "/stats"),
                ("GET", "/types"),
                ("GET", "/readyz"),
                ("POST", "/tasks/unheard"),
            ]:
                answer = await client.request(method, path, json={} if method == "POST" else None)
                assert (method, path, answer.status_code) == (method, path, 503)
                assert answer.headers["content-type"] == "application/problem+json"
                assert "retry-after" in answer.headers
            many = await client.post("/tasks", json=[BODY])
            assert many.status_code == 503
            own = await client.post("/tasks", json={**BODY, "taskgate": {"task_id": "own"}})
            assert (own.status_code, own.json()["task_id"]) == (503, "own")
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/openapi.json")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200
            await proxy.restore()

            async def works() -> bool:
                return (await client.post("/tasks", json=BODY)).status_code == 202

            await eventually(works)
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get(f"/tasks/{first.json()['task_id']}")).status_code == 200
        assert len([each for each in api.events("database_lost") if each["seconds"] == 0]) == 1
        assert len(api.events("database_back")) == 1
    assert len(await all_ids(calls)) == 2


async def test_a_wait_survives_a_lost_database(database: str, calls: Calls, finish_tasks: Any) -> None:
    async with CutProxy(database) as proxy, ApiProcess(proxy.url) as api, api.client() as client:
        held = asyncio.create_task(client.post("/tasks?wait=50", json=BODY))

        async def is_there() -> set[str]:
            return await all_ids(calls)

        await eventually(is_there)
        await proxy.cut()
        await finish_tasks(calls)
        await asyncio.sleep(0.1)
        await proxy.restore()
        answer = await held
        assert answer.status_code == 200, answer.text
        assert answer.json()["result"] == {"text": "done"}


async def test_started_while_the_database_is_down(database: str) -> None:
    async with CutProxy(database) as proxy:
        await proxy.cut()
        async with ApiProcess(proxy.url) as api, api.client() as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.post("/tasks", json=BODY)).status_code == 503
            await proxy.restore()

            async def works() -> bool:
                return (await client.post("/tasks", json=BODY)).status_code == 202

            await eventually(works)


async def test_an_insert_that_is_given_up(api: ApiProcess, connection: asyncpg.Connection[Any], calls: Calls) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET statement_timeout = 300')
    await connection.fetch(  # for the connections to come
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'taskgate api%'"
        " AND datname = current_database()"
    )
    async with api.client() as client:
        async with connection.transaction():
            await connection.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
            answers = await asyncio.gather(*(client.post("/tasks", json=BODY) for _ in range(5)))
            many = await client.post("/tasks", json=[BODY, BODY])
        for answer in (*answers, many):
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] == "database_refused"
            assert "retry-after" in answer.headers
        assert await all_ids(calls) == set()
        assert (await client.post("/tasks", json=BODY)).status_code == 202


async def test_an_id_in_somebodys_open_transaction_delays_nobody_else(
    api: ApiProcess, connection: asyncpg.Connection[Any]
) -> None:
    from taskgate.protocol.calls import NewTask

    async with api.client() as client:
        began = connection.transaction()
        await began.start()
        await Calls(connection).enqueue([NewTask("held", "llm", '{"prompt":"x"}')])
        held = asyncio.create_task(client.post("/tasks", json={**BODY, "taskgate": {"task_id": "held"}}))
        await asyncio.sleep(0.05)
        assert (await client.post("/tasks", json=BODY)).status_code == 202
        assert not held.done()
        await began.commit()
        assert (await held).status_code == 409


async def test_a_schema_that_changes_under_a_running_api(api: ApiProcess, connection: asyncpg.Connection[Any]) -> None:
    async with api.client() as client:
        await connection.execute("UPDATE taskgate.schema_version SET version = 999")
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "schema_mismatch")
        assert "upgrade taskgate" in ready.json()["detail"]
        answer = await client.post("/tasks", json=BODY)
        assert (answer.status_code, answer.json()["code"]) == (503, "schema_mismatch")
        await connection.execute("UPDATE taskgate.schema_version SET version = 1")
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post("/tasks", json=BODY)).status_code == 202
    assert len(api.events("schema_mismatch")) == 1


async def test_overdue_tasks_are_recovered_by_the_api_alone(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        task_id = (await client.post("/tasks", json=BODY)).json()["task_id"]
        assert (await calls.claim("gone", 1, [], 0.001, None)).tasks

        async def is_pending() -> bool:
            return bool((await client.get(f"/tasks/{task_id}")).json()["status"] == "pending")

        began = time.monotonic()
        await eventually(is_pending, 120)
        assert time.monotonic() - began < 120
