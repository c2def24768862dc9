"""`taskgate get` says what a pending task waits for: the real command and API, and a worker's calls by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, connect
from taskgate.protocol.records import Failure, Release, WorkerInfo
from tests.cli.conftest import run
from tests.programs import environment


@pytest.fixture
async def calls(database: str) -> AsyncIterator[Calls]:
    connection = await connect(Database(database), "test")
    yield Calls(connection)
    await connection.close()


@pytest.fixture
def waits(api: str, database: str) -> Any:
    """What `get` says that a task waits for."""

    async def get(task_id: str) -> Any:
        env = environment(TASKGATE_URL=api, DATABASE_URL=database)
        shown = (await asyncio.to_thread(run, env, "get", task_id, "--json")).json
        if "waiting_for" in shown:
            begins = shown["waiting_for"][:20]  # before any seconds that are left
            assert f"waiting for  {begins}" in (await asyncio.to_thread(run, env, "get", task_id)).out
        return shown.get("waiting_for")

    return get


async def put(calls: Calls, task_id: str, options: str | None = None, task_type: str = "llm") -> str:
    request = '{"prompt":"x","model":"m"}'
    assert await calls.enqueue([NewTask(task_id, task_type, request, options=options)]) == ["done"]
    return task_id


async def serve(calls: Calls) -> None:
    await calls.register_worker(WorkerInfo("w", "python", "0", "here", 1, 5, {"llm": (None, "")}))


async def test_a_worker_and_the_time(calls: Calls, waits: Any) -> None:
    nobody = "a worker: no live worker serves the type llm"
    plain = await put(calls, "plain")
    later = await put(calls, "later", '{"run_at":"2100-01-31T08:00:00Z"}')
    assert await waits(plain) == nobody
    assert (await waits(later)).startswith("its time, 2100-01-3")
    assert (await waits(later)).endswith(f"; {nobody}")
    await serve(calls)
    assert await waits(plain) == "its turn"
    assert "worker" not in await waits(later)
    await calls.renew("w", [], 60, draining=True)
    assert await waits(plain) == nobody
    await calls.renew("w", [], 60)
    assert (await calls.claim("w", 1, [], 60, None)).tasks[0].task_id == plain
    assert await waits(plain) is None


async def test_limits(calls: Calls, waits: Any) -> None:
    await serve(calls)
    await put(calls, "first")
    second, other = await put(calls, "second"), await put(calls, "other", '{"tenant":"acme"}', "veo")
    assert len((await calls.claim("w", 1, [], 60, ["llm"])).tasks) == 1
    await calls.set_limit(1)
    assert await waits(second) == "room within the limit of the whole fleet: 1 of 1 run"
    await calls.set_limit(0)
    assert await waits(second) == "the limit of the whole fleet to be raised: it is 0"
    await calls.set_limit(9)
    await calls.set_group_limit("model", "m", 1)
    assert await waits(second) == "room within the limit of model m: 1 of 1 run"
    await calls.set_group_limit("model", "m", 5)
    await calls.set_group_limit("tenant", "*", 0)
    assert await waits(second) == "its turn"
    assert "the limit of tenant acme to be raised: it is 0" in await waits(other)


async def test_rates_and_cool_downs(calls: Calls, waits: Any) -> None:
    await serve(calls)
    await calls.set_rate("type", "llm", requests=0.01, requests_burst=1)
    await put(calls, "first")
    second = await put(calls, "second")
    assert await waits(second) == "its turn"
    (task,) = (await calls.claim("w", 2, [], 60, None)).tasks
    assert (await waits(second)).startswith("the rate of type llm, which lets nothing through for 1 h ")
    await calls.remove_limit("type", "llm")
    release = Release(task.task_id, task.token, 7200.0, "throttled", "the provider said 429")
    await calls.release([release])
    said = await waits(second)
    assert said.startswith("type llm, which cools down for ")
    assert said.endswith(": the provider said 429")


async def test_without_a_database_nothing_is_said(api: str, calls: Calls) -> None:
    await put(calls, "alone")
    for elsewhere in ({}, {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing"}):
        ran = await asyncio.to_thread(run, environment(TASKGATE_URL=api, **elsewhere), "get", "alone", "--json")
        assert (ran.code, ran.json["status"], ran.err) == (0, "pending", "")
        assert "waiting_for" not in ran.json


async def test_a_cancel_that_was_asked_for_is_shown(api: str, database: str, calls: Calls) -> None:
    await serve(calls)
    await put(calls, "told")
    (task,) = (await calls.claim("w", 1, [], 60, None)).tasks
    env = environment(TASKGATE_URL=api, DATABASE_URL=database)

    async def status() -> str:
        lines = (await asyncio.to_thread(run, env, "get", "told")).out.splitlines()
        return next(line.removeprefix("status").strip() for line in lines if line.startswith("status"))

    assert await status() == "running"
    assert (await asyncio.to_thread(run, env, "cancel", "told")).code == 0
    assert await status() == "running, cancel requested"
    await calls.fail([Failure(task.task_id, task.token, "stopped", "stopped")])
    assert await status() == "failed"
