"""Slots are refilled by the call that writes results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from taskgate.protocol.calls import Calls, ClaimAnswer, Verdicts
from taskgate.worker.refill import MOST, MOST_CHARS
from tests.processes import Table, eventually
from tests.worker.claiming import claiming

Refill = tuple[Verdicts, ClaimAnswer]


class Refills(Calls):
    """Real calls; what a refill claims is noted, and `then` is done with it before anybody knows of it."""

    def __init__(self, connection: Any, then: Callable[[Refill], Any] | None = None) -> None:
        super().__init__(connection)
        self.then = then
        self.answers: list[ClaimAnswer] = []
        self.alone = 0

    async def complete_and_claim(self, *args: Any, **more: Any) -> Refill:
        found = await super().complete_and_claim(*args, **more)
        self.answers.append(found[1])
        if self.then is not None:
            await self.then(found)
        return found

    async def complete(self, results: Any) -> Verdicts:
        self.alone += len(results)
        return await super().complete(results)


async def drained(table: Table, slots: int, tasks: int) -> tuple[list[int], Refills]:
    """Runs tasks of a moment; how often the claimer asked, and what the refills brought."""
    ids = await table.add("sleep", [{"seconds": 0.02}] * tasks)
    made: list[Refills] = []

    def settling(connection: Any) -> Refills:
        made.append(Refills(connection))
        return made[0]

    async with claiming(table, ["sleep"], slots, 600, settling) as calls:
        rows = await table.final(ids)
        asked = list(calls.asked)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    return asked, made[0]


async def test_a_full_worker_claims_with_its_results(table: Table) -> None:
    asked, refills = await drained(table, slots=4, tasks=40)
    assert sum(len(answer.tasks) for answer in refills.answers) >= 30, (
        "nearly all: somebody else may hold the claim lock"
    )
    assert len(asked) < 6, "not once for each of ten times four results"
    assert await table.most_at_once() == 4


async def test_a_worker_that_claims_ahead_does_so_too(table: Table) -> None:
    """With as many slots as the limit there is no room for what it would claim ahead."""
    await table.sql.execute("SELECT set_limit(4)")
    made: list[Refills] = []

    def settling(connection: Any) -> Refills:
        made.append(Refills(connection))
        return made[0]

    ids = await table.add("noop", [{}] * 400)
    async with claiming(table, ["noop"], 4, 600, settling, ahead=9) as calls:
        rows = await table.final(ids)
        asked = len(calls.asked)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert sum(len(answer.tasks) for answer in made[0].answers) > 200, "most of them"
    assert asked < 60
    assert await table.most_at_once() <= 4


async def test_a_worker_at_the_limit_claims_with_its_results(table: Table) -> None:
    await table.sql.execute("SELECT set_limit(2)")
    asked, refills = await drained(table, slots=8, tasks=40)
    assert sum(len(answer.tasks) for answer in refills.answers) >= 30
    assert len(asked) < 12, "not once for each of 20 pairs of results"
    assert await table.most_at_once() == 2


async def test_tasks_of_other_types_get_their_chance(table: Table) -> None:
    await table.add("noop", [{}])
    _, refills = await drained(table, slots=4, tasks=20)
    assert {(answer.outcome, len(answer.tasks)) for answer in refills.answers} <= {("busy", 0)}


async def test_a_refill_whose_answer_was_lost(table: Table) -> None:
    lost = 0

    async def lose(found: Refill) -> None:
        nonlocal lost
        if found[1].tasks and lost < 3:
            lost += 1
            raise ConnectionResetError("lost on the way")

    ids = await table.add("sleep", [{"seconds": 0.02}] * 24)
    async with claiming(table, ["sleep"], 4, 600, lambda connection: Refills(connection, lose)):
        rows = await table.final(ids)
    assert lost
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}


async def test_results_are_written_where_nothing_can_be_claimed_along(table: Table) -> None:
    """Whatever it is that a claim does not get by, results must not stop for it."""
    body = "BEGIN RAISE EXCEPTION USING ERRCODE = 'lock_not_available'; END"
    signature = await table.sql.fetchval("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'claim'")
    ids = await table.add("sleep", [{"seconds": 0.3}] * 4)
    made: list[Refills] = []

    def settling(connection: Any) -> Refills:
        made.append(Refills(connection))
        return made[0]

    async with claiming(table, ["sleep"], 4, 600, settling) as calls:
        for task_id in ids:
            await table.running(task_id)
        definition = await table.sql.fetchval("SELECT pg_get_functiondef($1::regprocedure)", signature)
        broken = definition[: definition.index("AS $function$")] + f"AS $function$ {body} $function$"
        await table.sql.execute(broken)
        rows = await table.final(ids)
        await table.sql.execute(definition)
        more = await table.add("sleep", [{"seconds": 0.02}] * 12)
        await table.final(more)
        assert len(calls.asked) < 20
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert made[0].alone >= 4
    assert any(answer.tasks for answer in made[0].answers), "after a claim that succeeded it is tried again"


async def test_nothing_is_claimed_beside_a_refill(table: Table) -> None:
    """It would get the same tasks again, for nobody knows yet that they are held."""
    during: list[int] = []

    async def meanwhile(_: Refill) -> None:
        before = len(calls.asked)
        calls.claimer.wake()
        calls.claimer.notified()
        await asyncio.sleep(0.05)
        during.append(len(calls.asked) - before)

    ids = await table.add("sleep", [{"seconds": 0.02}] * 12)
    async with claiming(table, ["sleep"], 2, 600, lambda connection: Refills(connection, meanwhile)) as calls:
        rows = await table.final(ids)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert len(during) >= 4
    assert set(during) == {0}


async def test_what_a_refill_brings_after_the_end_is_given_back(table: Table) -> None:
    async def stop(_: Refill) -> None:
        calls.claimer.stop()

    ids = await table.add("sleep", [{"seconds": 0.02}] * 6)
    async with claiming(table, ["sleep"], 2, 600, lambda connection: Refills(connection, stop)) as calls:

        async def none_runs() -> bool:
            statuses = [row["status"] for row in (await table.calls.get(ids)).values()]
            return statuses.count("completed") == 2 and "running" not in statuses

        await eventually("two results, and the rest waiting", none_runs)
    rows = (await table.calls.get(ids)).values()
    waiting = [row for row in rows if row["status"] == "pending"]
    assert [row["attempts"] for row in waiting] == [0] * 4


@pytest.mark.parametrize("error", [asyncpg.InternalServerError, OverflowError])
async def test_an_answer_that_cannot_be_had(table: Table, error: type[Exception]) -> None:
    failed = 0

    async def fail(found: Refill) -> None:
        nonlocal failed
        failed += 1
        raise error("no")

    ids = await table.add("sleep", [{"seconds": 0.02}] * 12)
    async with claiming(table, ["sleep"], 4, 600, lambda connection: Refills(connection, fail)):
        rows = await table.final(ids)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert failed >= 1


async def test_over_a_new_connection_nothing_is_claimed_before_the_claimer_has(table: Table) -> None:
    """The database behind it may have another schema by now: only the claimer looks at that."""
    made: list[Refills] = []
    order: list[tuple[int, int]] = []
    number = 1

    async def reconnect(_: Refill) -> None:
        nonlocal number
        order.append((number, len(calls.asked)))
        if len(order) == 3:
            number = 2

    def settling(connection: Any) -> Refills:
        made.append(Refills(connection, reconnect))
        return made[0]

    ids = await table.add("sleep", [{"seconds": 0.02}] * 40)
    async with claiming(table, ["sleep"], 4, 600, settling) as calls:
        calls.claimer.refiller.results_over = lambda: number
        await table.final(ids)
    before = max(asked for over, asked in order if over == 1)
    after = min(asked for over, asked in order if over == 2)
    assert after > before, "it claimed by itself in between"


async def test_what_is_too_much_for_a_refill(table: Table) -> None:
    async with claiming(table, ["sleep"], 4, 600) as calls:
        refiller = calls.claimer.refiller

        async def idle() -> bool:
            return bool(calls.asked)

        await eventually("the first claim", idle)
        assert refiller.ask(1, 0) is None, "it can claim by itself"
        with refiller.lacking("slot"):
            assert refiller.ask(1, MOST_CHARS + 1) is None
            assert refiller.ask(MOST + 1, 0) is None
            refill = refiller.ask(1, MOST_CHARS)
            assert refill is not None
            assert refiller.ask(1, 0) is None, "one at a time"
            refiller.failed(ConnectionResetError())
            assert refiller.ask(1, 0) is None, "not at once after a failure"
