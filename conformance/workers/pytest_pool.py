"""Runs cases ahead of the tests that ask for them: pytest goes one by one, the cases run several at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import pytest

from conformance.workers.cases import Case
from conformance.workers.runner import AT_ONCE, Outcome, run_case
from conformance.workers.world import Databases

T = TypeVar("T")


class Pool:
    """An event loop in a thread of its own, with one PostgreSQL for all cases."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="conformance", daemon=True)
        self._started: dict[tuple[str, str], Future[Outcome]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        # several pytest processes would each run ahead with what another one has
        self._ahead = "PYTEST_XDIST_WORKER" not in os.environ
        self.databases = Databases()

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self.databases.start())
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._started.values():
            future.cancel()
        self.call(self._settled())
        self.call(self.databases.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop, and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def outcome(self, worker: str, command: str, case: Case, selected: Sequence[Case]) -> Outcome:
        """The outcome of a case; all that are `selected` for this worker are begun with the first of them."""
        for each in selected if self._ahead else [case]:
            key = (worker, each.id)
            if key not in self._started:
                self._started[key] = asyncio.run_coroutine_threadsafe(self._run(each, command), self._loop)
        return self._started[worker, case.id].result()

    def passed(self, worker: str, command: str, case: Case, selected: Sequence[Case]) -> None:
        outcome = self.outcome(worker, command, case, selected)
        if outcome.wrong is not None:
            pytest.fail(f"{worker}: {case.id}: {outcome.wrong}", pytrace=False)

    async def _run(self, case: Case, command: str) -> Outcome:
        async with self._turns:
            return await run_case(case, command, self.databases)

    async def _settled(self) -> None:
        """Wait until cancelled cases have cleaned up."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
