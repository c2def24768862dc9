"""Held answers: by notification, by poll, by the thousand, and when the client goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from taskgate.api import waiter as waiter_module
from taskgate.api.lookup import Lookup
from taskgate.api.waiter import Waiter
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, connect, pool
from taskgate.upkeep import DatabaseState
from tests.api.api_process import ApiProcess, eventually

BODY = {"prompt": "x"}


async def metric(api: ApiProcess, name: str) -> float:
    async with api.client() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


async def test_post_and_get_wait_for_the_end(api: ApiProcess, calls: Calls, finish_tasks: Any) -> None:
    async with api.client() as client:
        posted = asyncio.create_task(client.post("/tasks?wait=50", json=BODY))
        preferred = asyncio.create_task(client.post("/tasks", json=BODY, headers={"Prefer": "wait=50"}))

        async def both_wait() -> bool:
            return await metric(api, "taskgate_waiting_clients") == 2

        await eventually(both_wait)
        rows = await calls.page()
        got = asyncio.create_task(client.get(f"/tasks/{rows[0]['task_id']}?wait=50&include=history"))

        async def three_wait() -> bool:
            return await metric(api, "taskgate_waiting_clients") == 3

        await eventually(three_wait)
        result = '{"text": "\\u00e9", "b":1, "a":1.50}'
        await finish_tasks(calls, count=2, result=result)
        for answer in await asyncio.gather(posted, preferred, got):
            assert answer.status_code == 200
            assert answer.json()["status"] == "completed"
            assert answer.json()["result"] == {"text": "é", "b": 1, "a": 1.5}
            assert "retry-after" not in answer.headers
        assert (await got).json()["history"][0]["outcome"] == "completed"
        assert await metric(api, "taskgate_waiting_clients") == 0


async def test_a_failed_task_ends_the_wait(api: ApiProcess) -> None:
    async with api.client() as client:
        task_id = (await client.post("/tasks", json=BODY)).json()["task_id"]
        held = asyncio.create_task(client.get(f"/tasks/{task_id}?wait=50"))

        async def waits() -> bool:
            return await metric(api, "taskgate_waiting_clients") == 1

        await eventually(waits)
        await client.post(f"/tasks/{task_id}/cancel")
        answer = (await held).json()
        assert (answer["status"], answer["error"]) == ("failed", "cancelled")


async def test_progress_is_shown_while_it_runs(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        task_id = (await client.post("/tasks", json=BODY)).json()["task_id"]
        (task,) = (await calls.claim("w", 1, [], 60, None)).tasks
        await calls.checkpoint(task_id, task.token, progress='{"done": 0.25}')
        answer = await client.get(f"/tasks/{task_id}")
        assert answer.json()["status"] == "running"
        assert answer.json()["progress"] == {"done": 0.25}
        assert answer.headers["retry-after"] == "1"
        assert (await client.post(f"/tasks/{task_id}/cancel")).status_code == 202
        assert (await client.get(f"/tasks/{task_id}")).json()["cancel_requested"] is True
        await calls.complete([(task_id, task.token, "{}")])
        assert (await client.post(f"/tasks/{task_id}/cancel")).json()["outcome"] == "already"
        await client.post(f"/tasks/{task_id}/retry")
        (task,) = (await calls.claim("w", 1, [], 60, None)).tasks
        await calls.complete([(task_id, task.token, "{}")])
        answer = await client.post(f"/tasks/{task_id}/cancel")
        assert (answer.status_code, answer.json()["code"]) == (409, "already_finished")


async def test_nobody_waits_for_a_client_that_went_away(api: ApiProcess) -> None:
    async with api.client() as client:
        task_id = (await client.post("/tasks", json=BODY)).json()["task_id"]
    for request in (f"GET /tasks/{task_id}?wait=50", "POST /tasks?wait=50"):
        host, port = api.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"prompt":"x"}' if request.startswith("POST") else b""
        writer.write(f"{request} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

        async def waits() -> bool:
            return await metric(api, "taskgate_waiting_clients") == 1

        async def nobody() -> bool:
            return await metric(api, "taskgate_waiting_clients") == 0

        await eventually(waits)
        writer.close()
        await eventually(nobody)


async def test_stopping_answers_those_who_wait(database: str) -> None:
    with ApiProcess(database) as api:
        async with api.client() as client:
            held = asyncio.create_task(client.post("/tasks?wait=50", json=BODY))

            async def waits() -> bool:
                return await metric(api, "taskgate_waiting_clients") == 1

            await eventually(waits)
            began = time.monotonic()
            code = await asyncio.to_thread(api.stop)
            assert code == 0
            assert time.monotonic() - began < 30
            assert (await held).status_code == 202


@pytest.fixture
async def make_waiter(database: str) -> AsyncIterator[Callable[[bool], Waiter]]:
    target = Database(database)
    made: list[Waiter] = []
    async with pool(target, "waiter", size=4) as connections:

        def make(listening: bool) -> Waiter:
            calls, state = Calls(connections), DatabaseState()
            listen = (lambda: connect(target, "waiter (listen)")) if listening else None
            made.append(Waiter(Lookup(calls.get, state), calls, state, listen, calls.done_channel))
            made[-1].start()
            return made[-1]

        yield make
        for waiter in made:
            await waiter.stop()


async def listening(connection: asyncpg.Connection[Any]) -> Any:
    return await connection.fetchval(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'waiter (listen)'"
        " AND datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'"
    )


async def test_a_notification_is_enough(
    make_waiter: Any, connection: asyncpg.Connection[Any], calls: Calls, finish_tasks: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(waiter_module, "POLL_SECONDS", 10_000.0)
    waiter = make_waiter(True)
    await eventually(lambda: listening(connection))
    await calls.enqueue([NewTask("t", "llm", "{}")])
    held = asyncio.create_task(waiter.final("t", 100, lambda row: True))
    await eventually(lambda: _true(waiter._asked_until > 0))  # notifications were asked for
    await connection.fetch("SELECT 1")
    await finish_tasks(calls)
    assert (await asyncio.wait_for(held, 60))["status"] == "completed"


async def _true(value: bool) -> bool:
    return value


async def test_the_poll_is_enough(make_waiter: Any, calls: Calls, finish_tasks: Any) -> None:
    waiter = make_waiter(False)
    await calls.enqueue([NewTask("t", "llm", "{}")])
    held = asyncio.create_task(waiter.final("t", 100, lambda row: True))
    await eventually(lambda: _true(waiter.waiting == 1))
    await finish_tasks(calls)
    assert (await asyncio.wait_for(held, 60))["status"] == "completed"


async def test_a_lost_listener_is_replaced(
    make_waiter: Any, connection: asyncpg.Connection[Any], calls: Calls, finish_tasks: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(waiter_module, "POLL_SECONDS", 10_000.0)
    waiter = make_waiter(True)
    pid = await eventually(lambda: listening(connection))
    await connection.execute("SELECT pg_terminate_backend($1)", pid)

    async def another() -> bool:
        return await listening(connection) not in (None, pid)

    await eventually(another)
    await calls.enqueue([NewTask("t", "llm", "{}")])
    held = asyncio.create_task(waiter.final("t", 100, lambda row: True))
    await eventually(lambda: _true(waiter._asked_until > 0))
    await connection.fetch("SELECT 1")
    await finish_tasks(calls)
    assert (await asyncio.wait_for(held, 60))["status"] == "completed"


async def test_thousands_wait_on_one_connection(
    make_waiter: Any, connection: asyncpg.Connection[Any], calls: Calls, finish_tasks: Any
) -> None:
    waiter = make_waiter(True)
    await connection.execute("UPDATE taskgate.settings SET max_concurrent = 5000")
    names = [f"t{number}" for number in range(3000)]
    await calls.enqueue([NewTask(name, "llm", "{}") for name in names])
    held = [asyncio.create_task(waiter.final(name, 200, lambda row: True)) for name in names]
    await eventually(lambda: _true(waiter.waiting == 3000))
    await finish_tasks(calls, count=3000)
    rows = await asyncio.wait_for(asyncio.gather(*held), 120)
    assert {row["task_id"] for row in rows} == set(names)
    assert {row["status"] for row in rows} == {"completed"}
    assert waiter.waiting == 0
    used = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'waiter%' AND datname = current_database()"
    )
    assert used <= 5


async def test_a_quiet_listener_proves_itself_and_keeps_its_connection(
    make_waiter: Any, connection: asyncpg.Connection[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(waiter_module, "ALIVE_SECONDS", 0.05)
    make_waiter(True)

    async def proofs() -> list[Any]:
        return await connection.fetch(
            "SELECT pid, query_start FROM pg_stat_activity WHERE application_name = 'waiter (listen)'"
            " AND datname = current_database() AND query = 'SELECT 1' AND state = 'idle'"
        )

    async def proved() -> bool:
        return len(await proofs()) == 1

    await eventually(proved)
    (first,) = await proofs()

    async def again() -> bool:
        rows = await proofs()
        return bool(rows) and rows[0]["query_start"] > first["query_start"]

    await eventually(again)
    assert [row["pid"] for row in await proofs() or [first]] == [first["pid"]]
