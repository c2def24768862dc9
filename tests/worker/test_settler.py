"""Outcomes that the database refuses or puts off, and what the worker does with them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
from structlog.testing import capture_logs

from taskgate.protocol.calls import Calls, ClaimAnswer, Failure, Verdicts
from tests.processes import Table, eventually
from tests.worker.claiming import claiming


class Writes(Calls):
    """Real calls; what `complete` does here, it does with a claim along as well, which brings nothing."""

    async def complete_and_claim(self, results: Any, *_: Any, **__: Any) -> tuple[Verdicts, ClaimAnswer]:
        return await self.complete(results), ClaimAnswer("busy", [], None)


class RefusingCalls(Writes):
    """Real calls, but the database takes no outcome; `fail` only where `takes_failures`."""

    takes_failures = False
    writes = 0

    async def complete(self, results: Sequence[tuple[str, int, str]]) -> Verdicts:
        self.writes += 1
        raise asyncpg.DataError("no such value")

    async def fail(self, failures: Sequence[Failure]) -> Verdicts:
        self.writes += 1
        if not self.takes_failures:
            raise OverflowError("nor such words")
        return await super().fail(failures)


async def test_a_refused_value_becomes_a_plain_failure(table: Table) -> None:
    def settling(connection: Any) -> Calls:
        calls = RefusingCalls(connection)
        calls.takes_failures = True
        return calls

    ids = await table.add("noop", [{}] * 3)
    async with claiming(table, ["noop"], 4, 600, settling):
        rows = await table.final(ids)
    for row in rows.values():
        assert (row["status"], row["error_code"], row["attempts"]) == ("failed", "outcome_refused", 1)
        assert row["error"].startswith("the outcome could not be written: DataError: no such value")
        assert row["error_info"] is None


async def test_what_cannot_be_written_at_all_is_held_until_its_lease_ends(table: Table) -> None:
    made: list[RefusingCalls] = []

    def settling(connection: Any) -> Calls:
        made.append(RefusingCalls(connection))
        return made[-1]

    (task_id,) = await table.add("noop", [{}], max_attempts=1)
    (later,) = await table.add("noop", [{}], delay_seconds=1.5)
    with capture_logs() as said:
        async with claiming(table, ["noop"], 4, 2, settling) as calls:

            async def given_up() -> bool:
                return len([each for each in said if each["event"] == "settle_failed"]) >= 2

            await eventually("both to be given up", given_up)
            row = (await table.final([task_id]))[task_id]
            asked, writes = len(calls.asked), made[0].writes
    assert (row["status"], row["error_code"], row["attempts"]) == ("failed", "worker_timeout", 1), "recovered"
    assert writes <= 2 * (1 + 3), "each attempt is run once, and writes twice"
    assert asked < 60
    assert (await table.row(later))["attempts"] >= 1


class BusyCalls(Writes):
    """Real calls; the first of the tasks is held by somebody, so many times."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.held: str | None = None
        self.times = 6
        self.sizes: list[int] = []

    async def complete(self, results: Sequence[tuple[str, int, str]]) -> Verdicts:
        self.held = self.held or results[0][0]
        self.sizes.append(len(results))
        busy = [each for each in results if each[0] == self.held] if self.times else []
        self.times -= bool(busy)
        answers = await super().complete([each for each in results if each not in busy])
        return answers | {(task_id, token): "busy" for task_id, token, _ in busy}


async def test_a_row_that_is_busy_waits_alone(table: Table) -> None:
    made: list[BusyCalls] = []

    def settling(connection: Any) -> Calls:
        made.append(BusyCalls(connection))
        return made[-1]

    ids = await table.add("noop", [{}] * 40)
    async with claiming(table, ["noop"], 8, 600, settling):

        async def others() -> bool:
            rows = await table.calls.get(ids)
            return len([row for row in rows.values() if row["status"] == "completed"]) >= 39

        await eventually("all others", others)
        rows = await table.final(ids)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert made[0].times == 0


async def test_a_row_that_stays_busy_is_given_up_after_its_lease(table: Table) -> None:
    def settling(connection: Any) -> Calls:
        calls = BusyCalls(connection)
        calls.times = 1_000_000
        return calls

    await table.add("noop", [{}], max_attempts=1)
    with capture_logs() as said:
        async with claiming(table, ["noop"], 1, 1, settling):

            async def given_up() -> bool:
                await asyncio.sleep(0)
                return any(each["event"] == "settle_failed" for each in said)

            await eventually("it to be given up", given_up)
