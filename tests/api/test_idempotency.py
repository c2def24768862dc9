"""Idempotency keys where timing matters: concurrent duplicates, purge, a submission that fails, the database away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from taskgate import enqueue
from taskgate.protocol.calls import Calls
from tests.api.api_process import ApiProcess, eventually

BODY = {"prompt": "x"}
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%enqueue_once%'"


def key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


async def test_64_at_once_make_one_task(api: ApiProcess, connection: asyncpg.Connection[Any]) -> None:
    async with api.client() as client:
        answers = await asyncio.gather(*(client.post("/tasks", json=BODY, headers=key("k")) for _ in range(64)))
    assert {each.status_code for each in answers} == {202}
    assert len({each.json()["task_id"] for each in answers}) == 1
    assert sum("idempotent-replayed" in each.headers for each in answers) == 63
    assert await connection.fetchval("SELECT count(*) FROM tasks") == 1


async def test_many_bodies_that_share_keys_in_another_order(
    api: ApiProcess, connection: asyncpg.Connection[Any]
) -> None:
    items = [{"prompt": str(n), "taskgate": {"idempotency_key": f"k{n}"}} for n in range(50)]
    async with api.client() as client:
        bodies = [items if n % 2 else items[::-1] for n in range(16)]
        answers = await asyncio.gather(*(client.post("/tasks", json=body) for body in bodies))
    assert {each.status_code for each in answers} == {202}
    seen = {tuple(sorted(item["task_id"] for item in each.json())) for each in answers}
    assert len(seen) == 1
    assert await connection.fetchval("SELECT count(*) FROM tasks") == 50


async def test_a_replay_shows_what_became_of_the_task(api: ApiProcess, calls: Calls, finish_tasks: Any) -> None:
    async with api.client() as client:
        first = await client.post("/tasks", json=BODY, headers=key("k"))
        await finish_tasks(calls)
        again = await client.post("/tasks", json=BODY, headers=key("k"))
        waited = await client.post("/tasks?wait=5", json=BODY, headers=key("k"))
    assert again.json() == {"task_id": first.json()["task_id"], "status": "completed"}
    assert (waited.status_code, waited.json()["result"]) == (200, {"text": "done"})


async def test_the_key_goes_with_its_task(
    api: ApiProcess, calls: Calls, connection: asyncpg.Connection[Any], finish_tasks: Callable[..., Any]
) -> None:
    async with api.client() as client:
        first = await client.post("/tasks", json=BODY, headers=key("k"))
        many = await client.post("/tasks", json=[BODY, BODY], headers=key("m"))
        await finish_tasks(calls, count=3)
        await connection.execute(
            "UPDATE tasks SET expires_at = now() - interval '1 day' WHERE task_id = ANY ($1::text[])",
            [first.json()["task_id"], many.json()[1]["task_id"]],
        )
        assert await calls.purge() == 2
        second = await client.post("/tasks", json={"prompt": "another"}, headers=key("k"))
        rest = await client.post("/tasks", json=[BODY, BODY], headers=key("m"))
    assert second.status_code == 202
    assert second.json()["task_id"] != first.json()["task_id"]
    assert [each["status"] for each in rest.json()] == ["completed", "not_found"]


async def test_a_refused_submission_leaves_no_key(api: ApiProcess, connection: asyncpg.Connection[Any]) -> None:
    own = {**BODY, "taskgate": {"task_id": "mine"}}
    async with api.client() as client:
        assert (await client.post("/tasks", json=own)).status_code == 202
        assert (await client.post("/tasks", json=own, headers=key("k"))).status_code == 409
        assert (await client.post("/tasks", json=[own, BODY], headers=key("m"))).status_code == 409
        assert (await client.post("/tasks", json={}, headers=key("n"))).status_code == 422
    assert await connection.fetchval("SELECT count(*) FROM idempotency_keys") == 0
    assert await connection.fetchval("SELECT count(*) FROM tasks") == 1


async def test_a_key_in_an_open_transaction_is_waited_for(
    api: ApiProcess, connection: asyncpg.Connection[Any], database: str
) -> None:
    other = await asyncpg.connect(database)
    try:
        transaction = other.transaction()
        await transaction.start()
        task_id = await enqueue(other, "llm", BODY, idempotency_key="k")
        async with api.client() as client:
            asking = asyncio.ensure_future(client.post("/tasks", json=BODY, headers=key("k")))
            await eventually(lambda: connection.fetchval(WAITING))
            neighbour = await client.post("/tasks", json=BODY)
            assert neighbour.status_code == 202
            await transaction.commit()
            answer = await asking
        assert answer.json() == {"task_id": task_id, "status": "pending"}
    finally:
        await other.close()


async def test_one_key_only_and_numbers_by_value(api: ApiProcess) -> None:
    async with api.client() as client:
        twice = await client.post("/tasks", json=BODY, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
        assert (twice.status_code, twice.json()["code"]) == (422, "invalid_header")
        one = await client.post("/tasks", content='{"prompt":"x","temperature":1}', headers=key("n"))
        same = await client.post("/tasks", content='{"temperature":1.0,"prompt":"x"}', headers=key("n"))
    assert same.json()["task_id"] == one.json()["task_id"]
