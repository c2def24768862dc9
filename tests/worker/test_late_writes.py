"""What is written of a paid call after the attempt's lease has ended: its handle, and that it was refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskgate.protocol.calls import ClaimedTask
from taskgate.task import Handler, LeaseLost
from taskgate.worker.clock import now
from taskgate.worker.run import Run


class OutOfReach:
    """Calls to a database that cannot be reached three times, and then takes what it is given, or says `stale`."""

    def __init__(self, verdict: str) -> None:
        self.verdict = verdict
        self.tries: list[str] = []

    async def _answer(self, name: str) -> str:
        self.tries.append(name)
        if len(self.tries) <= 3:
            raise ConnectionRefusedError("nobody listens")
        return self.verdict

    async def save_operation(self, task_id: str, token: int, operation: str) -> str:
        assert (task_id, token, operation) == ("t", 7, '{"name":"op"}')
        return await self._answer("save_operation")

    async def withdraw(self, task_id: str, token: int) -> str:
        return await self._answer("withdraw")

    async def intend(self, task_id: str, token: int, account: str, *, retry: bool) -> str:
        return await self._answer("intend")


def late(calls: Any) -> Run:
    """An attempt whose lease ended a minute ago, and that is ours no more as far as this process knows."""
    claimed = ClaimedTask("t", 7, "veo", "{}", 1, 3, None, "", None, None, None, 0.0, False)
    handler = Handler("veo", lambda task: None, Any)
    run = Run(claimed, handler, True, None, 60.0, now() - 120.0, 60.0, calls, asyncio.get_running_loop())
    run.gone = True
    return run


@pytest.mark.parametrize("verdict", ["done", "stale"])
@pytest.mark.parametrize("verb", ["save_operation", "withdraw"])
async def test_what_was_paid_or_refused_is_written_however_late(verb: str, verdict: str) -> None:
    calls = OutOfReach(verdict)
    run = late(calls)
    writing = run.save_operation({"name": "op"}) if verb == "save_operation" else run.withdraw()
    if verdict == "stale":
        with pytest.raises(LeaseLost, match="no longer this worker's"):
            await writing
    else:
        await writing
    assert calls.tries == [verb] * 4


async def test_nothing_new_is_announced_after_the_lease() -> None:
    calls = OutOfReach("done")
    run = late(calls)
    with pytest.raises(LeaseLost):
        await run.intend({}, retry=False)
    run.gone = False
    with pytest.raises(LeaseLost):
        await run.intend({}, retry=False)
    assert calls.tries == ["intend"]
