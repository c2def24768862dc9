"""Many tasks in one body are written while the rest is still being checked: all or nothing all the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from taskgate.api.bulk import CHUNK_ROWS, MAX_ITEMS
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, connect
from tests.api.api_process import ApiProcess, eventually

GOOD = {"prompt": "x"}
NDJSON = {"content-type": "application/x-ndjson"}
KILL_WAITING = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'taskgate api'"
    " AND datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%enqueue%'"
)


def own(task_id: str) -> dict[str, Any]:
    return {**GOOD, "taskgate": {"task_id": task_id}}


async def test_the_first_wrong_item_is_named_wherever_it_stands(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        for place in (0, CHUNK_ROWS - 1, CHUNK_ROWS, 3 * CHUNK_ROWS):
            body: list[dict[str, Any]] = [GOOD] * (3 * CHUNK_ROWS + 1)
            body[place] = {"prompt": 7}
            answer = await client.post("/tasks", json=body)
            assert (answer.status_code, answer.json()["item"]) == (422, place)
            assert answer.json()["errors"][0]["pointer"] == f"/{place}/prompt"
            lines = "\n\n".join(json.dumps(each) for each in body)
            answer = await client.post("/tasks", content=lines, headers=NDJSON)
            assert (answer.status_code, answer.json()["item"], answer.json()["line"]) == (422, place, 2 * place + 1)
    assert await calls.page() == []


async def test_a_wrong_body_is_told_before_a_taken_id(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        assert (await client.post("/tasks", json=own("taken"))).status_code == 202
        body = [own("taken"), *[GOOD] * (2 * CHUNK_ROWS)]
        answer = await client.post("/tasks", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (409, "/0/taskgate/task_id")
        answer = await client.post("/tasks", json=[*body, {}])
        assert (answer.status_code, answer.json()["item"]) == (422, len(body))
        twice = [own("new"), *[GOOD] * (2 * CHUNK_ROWS), own("new")]
        answer = await client.post("/tasks", json=twice)
        assert (answer.status_code, answer.json()["code"]) == (422, "duplicate_task_id")
    assert [row["task_id"] for row in await calls.page()] == ["taken"]


async def test_order_and_options_go_through_all_chunks(api: ApiProcess, connection: asyncpg.Connection[Any]) -> None:
    count = 2 * CHUNK_ROWS + 7
    body = [
        {"prompt": f"{n}", "taskgate": {"priority": 9, "task_id": f"own-{n}"}} if n % 500 == 0 else {"prompt": f"{n}"}
        for n in range(count)
    ]
    async with api.client() as client:
        answer = await client.post("/tasks", json=body, headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    assert answer.status_code == 202
    ids = [each["task_id"] for each in answer.json()]
    rows = await connection.fetch("SELECT task_id, request ->> 'prompt' AS n, priority, traceparent FROM tasks")
    assert {row["task_id"]: int(row["n"]) for row in rows} == {task_id: n for n, task_id in enumerate(ids)}
    assert {row["task_id"] for row in rows if row["priority"] == 9} == {f"own-{n}" for n in range(0, count, 500)}
    assert {row["traceparent"] for row in rows} == {f"00-{'a' * 32}-{'b' * 16}-01"}


@pytest.mark.parametrize("killed", [True, False])
async def test_a_connection_lost_in_the_second_chunk(
    api: ApiProcess, database: str, connection: asyncpg.Connection[Any], calls: Calls, killed: bool
) -> None:
    body = [*[GOOD] * (CHUNK_ROWS + 10), own("held"), *[GOOD] * CHUNK_ROWS]
    holder = await connect(Database(database), "holder")
    async with api.client() as client:
        await holder.execute("BEGIN")
        await Calls(holder).enqueue([NewTask("held", "llm", '{"prompt":"x"}')])
        sent = asyncio.create_task(client.post("/tasks", json=body))  # its second chunk waits for that id
        if killed:
            await eventually(lambda: connection.fetchval(KILL_WAITING))
            answer = await sent
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
            await holder.close()  # rolls back
            assert await calls.page() == []
        else:
            await holder.close()
            assert (await sent).status_code == 202
        assert (await client.post("/tasks", json=[GOOD])).status_code == 202
    assert await connection.fetchval("SELECT count(*) FROM tasks") == (1 if killed else len(body) + 1)


async def test_a_statement_that_is_given_up_in_the_second_chunk(
    api: ApiProcess, connection: asyncpg.Connection[Any]
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET lock_timeout = 300')
    await connection.fetch(  # for the connections to come
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'taskgate api%'"
        " AND datname = current_database()"
    )
    async with api.client() as client, connection.transaction():
        await Calls(connection).enqueue([NewTask("held", "llm", '{"prompt":"x"}')])
        answer = await client.post("/tasks", json=[*[GOOD] * CHUNK_ROWS, own("held")])
        assert (answer.status_code, answer.json()["code"]) == (503, "database_refused")
        assert await connection.fetchval("SELECT count(*) FROM tasks") == 1


async def test_too_many_lines_are_refused_before_any_is_written(
    api: ApiProcess, connection: asyncpg.Connection[Any]
) -> None:
    line = b'{"prompt":"x"}\n'
    before = await connection.fetchval("SELECT last_value FROM taskgate.task_seq")
    async with api.client() as client:
        answer = await client.post("/tasks", content=line * (MAX_ITEMS + 1), headers=NDJSON)
        assert (answer.status_code, answer.json()["code"]) == (422, "too_many_items")
        assert await connection.fetchval("SELECT last_value FROM taskgate.task_seq") == before
        blank = b"\n" * (MAX_ITEMS + 1)
        assert (await client.post("/tasks", content=line + blank, headers=NDJSON)).status_code == 202
