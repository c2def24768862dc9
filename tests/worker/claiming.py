"""A claimer, runner and settler of this process against a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from taskgate.protocol.calls import Calls, ClaimAnswer
from taskgate.settings import Settings
from taskgate.worker.claimer import Claimer
from taskgate.worker.run import Run
from taskgate.worker.runner import Runner
from taskgate.worker.settle import Settler
from tests.processes import Table
from tests.worker.app import handlers


class WatchedCalls(Calls):
    """Real calls; a claim's reply can be lost or late."""

    claimer: Claimer

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
    table: Table, types: list[str], slots: int, lease: float, settling: Callable[[Any], Calls] = Calls, ahead: int = 0
) -> AsyncIterator[WatchedCalls]:
    """A claimer, runner and settler of this process."""
    claims, settles = await Table.open(table.dsn), await Table.open(table.dsn)
    calls = WatchedCalls(claims.sql)
    settings = Settings(database_url=table.dsn, slots=slots, lease_seconds=lease, claim_ahead=ahead)

    def finished(run: Run) -> None:
        runner.runs.pop(run.token, None)
        claimer.wake()

    settler = Settler(settling(settles.sql), finished)
    runner = Runner(handlers, settings, Calls(settles.sql), settler)
    claimer = calls.claimer = Claimer(calls, "me", types, lease, 15, runner)
    settler.refiller = claimer.refiller
    claimer.refiller.results_over = lambda: 1
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
