"""Submissions that wait for somebody's open transaction leave connections to the others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
import pytest

from taskgate.api.context import NAMED_LANES, POOL_SIZE
from taskgate.api.lanes import Lanes
from taskgate.api.problems import Problem
from taskgate.protocol.calls import Calls, NewTask
from tests.api.api_process import ApiProcess, eventually

BODY = {"prompt": "x"}
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'taskgate api' AND wait_event_type = 'Lock'"
    " AND datname = current_database()"
)


@pytest.mark.parametrize("by", ["task_id", "idempotency_key"])
async def test_ids_in_somebodys_open_transaction_do_not_take_all_connections(
    api: ApiProcess, connection: asyncpg.Connection[Any], calls: Calls, by: str
) -> None:
    names = [f"held-{number}" for number in range(POOL_SIZE + 2)]
    async with api.client() as client:

        async def submit(name: str) -> Any:
            return await client.post("/tasks", json={**BODY, "taskgate": {by: name}})

        began = connection.transaction()
        await began.start()
        if by == "task_id":
            await calls.enqueue([NewTask(name, "llm", '{"prompt":"x"}') for name in names])
        else:
            for name in names:
                await calls.enqueue_once(NewTask(f"of-{name}", "llm", '{"prompt":"y"}'), name, "another")
        held = [asyncio.create_task(submit(name)) for name in names]

        async def waiting() -> bool:
            await connection.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction sees the same for ever
            return bool(await connection.fetchval(WAITING) == NAMED_LANES)

        await eventually(waiting)
        assert (await client.post("/tasks", json=BODY)).status_code == 202
        assert (await client.get("/tasks/unheard")).status_code == 404
        first = next(asyncio.as_completed(held))
        refused = await first
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert refused.headers["retry-after"] == "1"
        await began.commit()
        answers = [(answer.status_code, answer.json()["code"]) for answer in await asyncio.gather(*held)]
        taken = (409, "task_exists") if by == "task_id" else (422, "idempotency_mismatch")
        assert set(answers) == {taken, (503, "busy")}
        assert answers.count(taken) >= NAMED_LANES
        assert (await submit("free")).status_code == 202


async def test_a_turn_is_given_back_whatever_happened_in_it() -> None:
    lanes = Lanes(1, "too many", seconds=0.01)
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            async with lanes.turn():
                with pytest.raises(Problem, match="too many") as refused:
                    await lanes.turn().__aenter__()
                raise ZeroDivisionError
    assert (refused.value.status, refused.value.code) == (503, "busy")
