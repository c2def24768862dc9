"""The claimer against a real database: lost replies, late replies, and how often it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from structlog.testing import capture_logs

from taskgate.protocol.calls import Calls, ClaimAnswer
from taskgate.settings import Settings
from taskgate.worker.claimer import Claimer
from taskgate.worker.run import Run
from taskgate.worker.runner import Runner
from taskgate.worker.settle import Settler
from tests.processes import Table, eventually
from tests.worker.app import handlers


class WatchedCalls(Calls):
    """Real calls; a claim's reply can be lost or late."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.asked: list[int] = []
        self.lose = 0
        self.delay = 0.0
        self.unreadable = 0

    async def claim(
        self,
        worker_id: str,
        slots: int,
        held: Sequence[int],
        lease: float,
        types: Sequence[str] | None,
        *,
        listener: int | None = None,
        ahead: int | None = None,
    ) -> ClaimAnswer:
        self.asked.append(slots)
        if self.unreadable:
            self.unreadable -= 1
            raise OverflowError("date value out of range")
        answer = await super().claim(worker_id, slots, held, lease, types, listener=listener, ahead=ahead)
        delay, self.delay = self.delay, 0.0
        await asyncio.sleep(delay)
        if answer.tasks and self.lose:
            self.lose -= 1
            raise ConnectionResetError("lost on the way")
        return answer


@asynccontextmanager
async def claiming(
    table: Table, types: list[str], slots: int, lease: float, settling: Callable[[Any], Calls] = Calls
) -> AsyncIterator[WatchedCalls]:
    """A claimer, runner and settler of this process."""
    claims, settles = await Table.open(table.dsn), await Table.open(table.dsn)
    calls = WatchedCalls(claims.sql)
    settings = Settings(database_url=table.dsn, slots=slots, lease_seconds=lease)

    def finished(run: Run) -> None:
        runner.runs.pop(run.token, None)
        claimer.wake()

    settler = Settler(settling(settles.sql), finished)
    runner = Runner(handlers, settings, Calls(settles.sql), settler)
    claimer = Claimer(calls, "me", types, lease, 15, runner)
    work = [asyncio.create_task(claimer.work()), asyncio.create_task(settler.work())]
    try:
        yield calls
    finally:
        claimer.stop()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        claims.sql.terminate()
        settles.sql.terminate()


async def test_a_lost_reply_leaks_no_slot(table: Table) -> None:
    ids = await table.add("noop", [{}] * 20)
    async with claiming(table, ["noop"], 4, 600) as calls:
        calls.lose = 3
        rows = await table.final(ids)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert calls.lose == 0


async def test_an_answer_that_cannot_be_read_ends_nothing(table: Table) -> None:
    with capture_logs() as said:
        async with claiming(table, ["noop"], 4, 600) as calls:
            calls.unreadable = 4
            ids = await table.add("noop", [{}] * 20)
            rows = await table.final(ids)
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert calls.unreadable == 0
    errors = [each["error"] for each in said if each["event"] == "claim_failed"]
    assert errors == ["OverflowError: date value out of range"], "said once"


async def test_a_reply_older_than_half_a_lease_is_not_begun(table: Table) -> None:
    ids = await table.add("noop", [{}] * 2)
    async with claiming(table, ["noop"], 4, 2) as calls:
        calls.delay = 1.2
        rows = await table.final(ids)
        assert len(calls.asked) >= 2
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}


async def test_a_large_worker_claims_one_half_while_the_other_runs(table: Table) -> None:
    ids = await table.add("noop", [{}] * 600)
    async with claiming(table, ["noop"], 250, 600) as calls:
        await table.final(ids)
        assert max(calls.asked) == 125


async def test_it_asks_for_all_free_slots_and_not_at_all_without_one(table: Table) -> None:
    ids = await table.add("sleep", [{"seconds": 3600}] * 8)
    async with claiming(table, ["sleep"], 5, 600) as calls:

        async def five_run() -> bool:
            rows = await table.calls.get(ids)
            return bool(sum(row["status"] == "running" for row in rows.values()) == 5)

        await eventually("five to run", five_run)
        await asyncio.sleep(1)
        assert calls.asked == [5]


async def test_an_idle_claimer_waits(table: Table) -> None:
    async with claiming(table, ["noop"], 5, 600) as calls:

        async def asked() -> bool:
            return bool(calls.asked)

        await eventually("a claim", asked)
        await asyncio.sleep(2)
        assert len(calls.asked) <= 3, "no polling faster than TASKGATE_POLL_SECONDS"
