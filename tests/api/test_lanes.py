"""Submissions that wait for somebody's open transaction leave connections to the others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
import pytest

from taskgate.api.context import BULK_LANES, NAMED_LANES, POOL_SIZE
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


class Held:
    """Those who have a turn, by name, until they are let go."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.now: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, name: str, tenant: str, key: str | None = None) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(name, tenant, key))
        await settle()

    async def _hold(self, name: str, tenant: str, key: str | None) -> None:
        async with self._lanes.turn(tenant, key):
            self.now.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.now.remove(name)

    async def go(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks.pop(name)
        await settle()

    async def give_up(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle()


async def settle() -> None:
    """Lets everybody go on who can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_tenant_leaves_a_turn_to_the_others() -> None:
    held = Held(Lanes(4, "too many", most=3))
    for number in range(5):
        await held.come(f"a{number}", "a")
    await held.come("b0", "b")
    assert held.now == ["a0", "a1", "a2", "b0"]
    await held.come("b1", "b")
    await held.go("a1")
    assert held.now == ["a0", "a2", "b0", "a3"], "in the order in which they came"
    await held.go("b0")
    assert held.now == ["a0", "a2", "a3", "b1"], "not a4: its tenant has three"
    await held.go("b1")
    assert held.now == ["a0", "a2", "a3"]
    await held.give_up("a0")
    assert held.now == ["a2", "a3", "a4"]
    for name in ("a2", "a3", "a4"):
        await held.go(name)
    assert held.now == []


async def test_those_who_would_wait_for_each_other_hold_one_turn() -> None:
    held = Held(Lanes(3, "too many"))
    for number in range(4):
        await held.come(f"same{number}", "a", "k")
    await held.come("another key", "a", "l")
    await held.come("another tenant", "b", "k")
    assert held.now == ["same0", "another key", "another tenant"]
    await held.give_up("same1")
    await held.go("another key")
    assert held.now == ["same0", "another tenant"]
    await held.go("same0")
    assert held.now == ["another tenant", "same2"]
    await held.go("same2")
    await held.go("same3")
    await held.go("another tenant")
    assert held.now == []


async def test_who_waited_in_vain_is_forgotten() -> None:
    lanes = Lanes(1, "too many", seconds=0.01)
    async with lanes.turn("a", "k"):
        for tenant, key in (("a", "k"), ("b", None)):
            with pytest.raises(Problem, match="too many"):
                await lanes.turn(tenant, key).__aenter__()
    async with lanes.turn("a", "k"):
        pass


KEYS = "a:" + "a" * 32 + ",b:" + "b" * 32


@pytest.mark.parametrize("tenants", [True, False])
@pytest.mark.parametrize("by", ["task_id", "idempotency_key"])
async def test_one_tenants_names_leave_a_turn_to_another(
    database: str, connection: asyncpg.Connection[Any], calls: Calls, by: str, tenants: bool
) -> None:
    names = [f"held-{number}" for number in range(POOL_SIZE)]
    with ApiProcess(database, **({"TASKGATE_API_KEYS": KEYS} if tenants else {})) as api:
        async with api.client() as client:

            async def submit(name: str, tenant: str = "a") -> Any:
                headers = {"X-API-Key": tenant * 32} if tenants else {}
                return await client.post("/tasks", json={**BODY, "taskgate": {by: name}}, headers=headers)

            began = connection.transaction()
            await began.start()
            for name in names:
                if by == "task_id":
                    await calls.enqueue([NewTask(name, "llm", '{"prompt":"x"}')])
                else:
                    await calls.enqueue_once(
                        NewTask(f"of-{name}", "llm", '{"prompt":"y"}'), name, "another", tenant="a" if tenants else ""
                    )
            held = [asyncio.create_task(submit(name)) for name in [names[0], *names]]
            most = NAMED_LANES - 1 if tenants else NAMED_LANES

            async def waiting() -> bool:
                await connection.execute("SELECT pg_stat_clear_snapshot()")
                return bool(await connection.fetchval(WAITING) == most)

            await eventually(waiting)
            if tenants:
                assert (await submit("free", "b")).status_code == 202
            assert await waiting()
            await began.rollback()
            answers = [answer.status_code for answer in await asyncio.gather(*held)]
            assert set(answers) <= {202, 409, 503}
            assert answers.count(202) >= most


@pytest.mark.parametrize("keyed", [True, False])
async def test_bodies_of_many_tasks_wait_for_a_while_only(
    api: ApiProcess, connection: asyncpg.Connection[Any], calls: Calls, keyed: bool
) -> None:
    """Each waits for an id in an open transaction."""
    async with api.client() as client:

        async def submit(number: int) -> Any:
            body = [BODY, {**BODY, "taskgate": {"task_id": f"held-{number}"}}]
            return await client.post("/tasks", json=body, headers={"Idempotency-Key": f"k{number}"} if keyed else {})

        began = connection.transaction()
        await began.start()
        await calls.enqueue([NewTask(f"held-{number}", "llm", '{"prompt":"x"}') for number in range(BULK_LANES + 1)])
        held = [asyncio.create_task(submit(number)) for number in range(BULK_LANES + 1)]
        refused = await next(asyncio.as_completed(held))
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert refused.headers["retry-after"] == "1"
        await began.rollback()
        assert sorted(each.status_code for each in await asyncio.gather(*held)) == [202, 202, 503]
