"""What one caller, one row or one slow connection does must not reach the others."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import asyncpg
import pytest

from taskgate.api import waiter as waiter_module
from taskgate.api.context import ACTION_LANES
from taskgate.api.lookup import Lookup
from taskgate.api.schema_watch import watch_schema
from taskgate.api.waiter import Waiter
from taskgate.protocol.calls import Calls, NewTask
from taskgate.upkeep import DatabaseState, upkeep
from tests.api.api_process import ApiProcess, eventually

BODY = {"prompt": "x"}
NEVER_DONE = (
    "import sys, threading; from taskgate.api import bulk, server, submit;"
    "submit.parse_object = bulk.parse_object = lambda raw: (sys.stderr.write('stuck\\n'), threading.Event().wait());"
    "sys.exit(server.main())"
)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name = 'taskgate api' AND datname = current_database() AND wait_event_type = 'Lock'"
)
READABLE = (
    "CREATE OR REPLACE FUNCTION taskgate.readable(p_time timestamptz) RETURNS timestamptz LANGUAGE sql AS $$ {} $$"
)


@pytest.mark.parametrize("many", [False, True])
async def test_a_body_that_is_never_done_does_not_keep_the_process_alive(database: str, many: bool) -> None:
    process = ApiProcess(database, TASKGATE_GRACE_SECONDS="1")
    process.command = [sys.executable, "-c", NEVER_DONE]
    body: Any = {"prompt": "x" * 300_000}
    with process as api:
        async with api.client() as client:
            sent = asyncio.create_task(client.post("/tasks", json=[body] if many else body))

            async def is_stuck() -> bool:
                return "stuck" in api.lines

            await eventually(is_stuck)
            assert (await client.get("/healthz")).status_code == 200
            assert await asyncio.to_thread(api.stop) == 0
            await asyncio.gather(sent, return_exceptions=True)


@pytest.mark.parametrize("action", ["cancel", "retry"])
async def test_actions_on_a_row_that_somebody_holds_delay_nobody_else(
    api: ApiProcess, connection: asyncpg.Connection[Any], action: str
) -> None:
    async with api.client() as client:
        held = (await client.post("/tasks", json=BODY)).json()["task_id"]
        block = connection.transaction()
        await block.start()
        await connection.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", held)
        tries = [asyncio.create_task(client.post(f"/tasks/{held}/{action}")) for _ in range(30)]
        most = 0
        while not all(each.done() for each in tries):
            posted = await client.post("/tasks", json=BODY)
            assert posted.status_code == 202
            assert (await client.get(f"/tasks/{held}")).status_code == 200
            assert (await client.get("/tasks")).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            most = max(most, await connection.fetchval(WAITING))
        assert 1 <= most <= ACTION_LANES
        for answer in await asyncio.gather(*tries):
            assert (answer.status_code, answer.json()["code"]) == (503, "busy"), answer.text
            assert answer.headers["retry-after"] == "1"
        assert any("holds the row" in each.result().json()["detail"] for each in tries)
        await block.rollback()
        assert (await client.post(f"/tasks/{held}/cancel")).json()["outcome"] == "cancelled"
        assert (await client.post(f"/tasks/{held}/retry")).status_code == 202
    assert api.events("database_lost") == []


@pytest.mark.parametrize(
    "body",
    [
        "SELECT p_time",  # a year that Python does not have
        "SELECT CASE WHEN p_time > '9999-12-31' THEN NULLIF(1 / (date_part('year', p_time) * 0)::int, 0)::text END"
        "::timestamptz",  # the database itself stumbles
    ],
    ids=["undecodable", "refused"],
)
async def test_a_row_that_cannot_be_read_fails_nobody_else(
    api: ApiProcess, connection: asyncpg.Connection[Any], calls: Calls, finish_tasks: Any, body: str
) -> None:
    async with api.client() as client:
        names = [f"t{number}" for number in range(20)]
        await calls.enqueue([NewTask(name, "llm", "{}") for name in (*names, "bad")])
        await connection.execute(READABLE.format(body))
        await connection.execute(
            "UPDATE tasks SET created_at = '99999-01-01', run_at = now() + interval '1 day' WHERE task_id = 'bad'"
        )
        for _ in range(3):
            answers = await asyncio.gather(*(client.get(f"/tasks/{name}") for name in (*names, "bad")))
            assert [each.status_code for each in answers] == [200] * 20 + [500]
            assert answers[-1].headers["content-type"] == "application/problem+json"
            assert answers[-1].json()["code"] == "task_unreadable"
        waits = [asyncio.create_task(client.get(f"/tasks/{name}?wait=50")) for name in (*names, "bad")]
        assert (await waits[-1]).json()["code"] == "task_unreadable"
        await finish_tasks(calls, count=20)
        assert {each.json()["status"] for each in await asyncio.gather(*waits[:-1])} == {"completed"}
    assert api.events("database_lost") == []
    assert {each["task_id"] for each in api.events("task_unreadable")} == {"bad"}


class Stumbling(Calls):
    """Fails a few times in a way that nobody thought of."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        super().__init__(connection)
        self.left = 3
        self.recovered = asyncio.Event()

    def stumble(self) -> None:
        if self.left > 0:
            self.left -= 1
            raise RuntimeError("odd")

    async def get(self, *args: Any, **more: Any) -> dict[str, Any]:
        rows = await super().get(*args, **more)
        if more.get("result_bytes") == 0 and self.left > 0:  # the poll
            self.left -= 1
            return dict.fromkeys(rows, object())
        return rows

    async def await_done(self, seconds: float) -> None:
        self.stumble()

    async def recover(self) -> int:
        self.stumble()
        self.recovered.set()
        return await super().recover()

    async def schema_version(self) -> int | None:
        self.stumble()
        return await super().schema_version()


@pytest.fixture
def stumbling(connection: asyncpg.Connection[Any]) -> Stumbling:
    return Stumbling(connection)


async def test_the_poll_survives_anything(
    stumbling: Stumbling, finish_tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter_module, "POLL_SECONDS", 0.05)
    state = DatabaseState()
    waiter = Waiter(Lookup(stumbling.get, state), stumbling, state, None, "none")
    waiter.start()
    await stumbling.enqueue([NewTask("t", "llm", "{}")])

    async def final() -> Any:
        return await waiter.final("t", 100, lambda row: True)

    held = asyncio.create_task(final())

    async def stumbled() -> bool:
        return stumbling.left == 0

    try:
        await eventually(stumbled)
        await finish_tasks(stumbling)
        assert (await asyncio.wait_for(held, 60))["status"] == "completed"
    finally:
        await waiter.stop()


async def test_the_listener_survives_anything(stumbling: Stumbling, database: str) -> None:
    state = DatabaseState()
    tries = asyncio.Event()

    async def connect() -> Any:
        if stumbling.left > 1:
            stumbling.stumble()
        tries.set()
        return await asyncpg.connect(database)

    waiter = Waiter(Lookup(stumbling.get, state), stumbling, state, connect, "some_channel")
    waiter.start()
    try:
        await asyncio.wait_for(tries.wait(), 60)
        assert stumbling.left == 1
        assert await asyncio.wait_for(waiter.final("none", 1, lambda row: True), 60) is None  # await_done stumbles
    finally:
        await waiter.stop()


async def test_upkeep_survives_anything(stumbling: Stumbling) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(upkeep(stumbling, stop, recover_seconds=0.02))
    await asyncio.wait_for(stumbling.recovered.wait(), 60)
    assert stumbling.left == 0
    stop.set()
    await running


async def test_the_schema_watch_survives_anything(
    stumbling: Stumbling, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskgate.api import schema_watch
    from taskgate.api.context import make_context
    from taskgate.settings import Settings

    monkeypatch.setattr(schema_watch, "SECONDS", 0.01)
    context = make_context(Settings(database_url=database))
    context.calls = stumbling
    await stumbling._db.execute("UPDATE taskgate.schema_version SET version = 999")
    watching = asyncio.create_task(watch_schema(context))

    async def noticed() -> bool:
        assert not watching.done()
        return context.schema_trouble is not None

    await eventually(noticed)
    assert stumbling.left == 0
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_metadata_is_kept_to_the_digit(api: ApiProcess, calls: Calls) -> None:
    numbers = '{"a": 12345678901234567890.5, "b": 0.10, "c": 123456789012345678901234567890, "d": [1e2, -0.0]}'
    kept = '{"a": 12345678901234567890.5, "b": 0.10, "c": 123456789012345678901234567890, "d": [100, 0.0]}'
    headers = {"Content-Type": "application/json"}
    async with api.client() as client:
        sent = f'{{"prompt":"x","taskgate":{{"priority":1,"metadata":{numbers}}}}}'
        answer = await client.post("/tasks", content=sent, headers=headers)
        assert answer.status_code == 202, answer.text
        assert kept.replace(" ", "") in (await client.get(f"/tasks/{answer.json()['task_id']}")).text.replace(" ", "")
        many = await client.post("/tasks", content=f"[{sent}]", headers=headers)
        assert kept.replace(" ", "") in (await client.get(f"/tasks/{many.json()[0]['task_id']}")).text.replace(" ", "")
        for task in (await calls.claim("w", 2, [], 60, None)).tasks:
            assert task.metadata == kept
        beyond = '{"prompt":"x","taskgate":{"metadata":{"a":[1,{"b/c":-1e400}],"d":1e309,"e":1e308}}}'
        answer = await client.post("/tasks", content=beyond, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_option")
        places = [each["pointer"] for each in answer.json()["errors"]]
        assert places == ["/taskgate/metadata/a/1/b~1c", "/taskgate/metadata/d"]
        spaced = json.dumps({"prompt": "x", "taskgate": {"metadata": {"a": [1] * 8000}}}, indent=8)
        assert (await client.post("/tasks", content=spaced, headers=headers)).status_code == 202
        digits = f'{{"prompt":"x","taskgate":{{"metadata":{{"a":0.{"1" * 17000}}}}}}}'
        answer = await client.post("/tasks", content=digits, headers=headers)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/taskgate/metadata")


@pytest.mark.parametrize(
    ("task_id", "status"), [(".", 422), ("..", 422), ("..." * 60, 422), (".a.", 202), ("..:", 202)]
)
async def test_an_id_is_not_dots_alone(api: ApiProcess, task_id: str, status: int) -> None:
    async with api.client() as client:
        answer = await client.post("/tasks", json={**BODY, "taskgate": {"task_id": task_id}})
        assert answer.status_code == status
        if status == 202:
            assert (await client.get(f"/tasks/{task_id}")).json()["task_id"] == task_id
        else:
            assert answer.json()["errors"][0]["pointer"] == "/taskgate/task_id"
