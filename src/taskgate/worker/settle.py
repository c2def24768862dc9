"""The completion buffer: outcomes are written in batches as they gather.

A lone outcome goes at once; while a write is under way the next ones gather for the batch after it. An outcome
whose write failed for the database's sake is kept and tried again: the token makes a repeat harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import asyncpg

from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls, Failure, Release, Verdicts
from taskgate.worker.link import TROUBLE, Backoff, CannotConnect
from taskgate.worker.results import error_text
from taskgate.worker.run import Run, Settlement

log = get_logger("worker")

MAX_ROWS = 500
MAX_BYTES = 8 * 1024**2
"""A batch is cut at so many bytes of results, so that one large result does not delay hundreds."""


class Settler:
    """Writes settlements; `on_finished` is called for each run that has ended and is settled."""

    def __init__(self, calls: Calls, on_finished: Callable[[Run], None]) -> None:
        self._calls = calls
        self._on_finished = on_finished
        self._queue: deque[Run] = deque()
        self._writing = 0
        self._ready = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._backoff = Backoff(0.05, 2.0)
        self._held_up = 0
        self._loop = asyncio.get_running_loop()
        self._say_completed: bool = log.is_enabled_for(logging.DEBUG)
        self.counts = dict.fromkeys(("completed", "failed", "cancelled", "released", "refused"), 0)
        """Settlements written so far, by what became of them; failed attempts that are tried again count as failed."""

    def put(self, run: Run, settlement: Settlement) -> None:
        """Have the outcome of `run` written."""
        run.settlement = settlement
        self._queue.append(run)
        self._ready.set()
        self._empty.clear()

    def finish(self, run: Run) -> None:
        """The run has ended and nothing more is to be written for it."""
        run.settled = True
        self._on_finished(run)

    async def flushed(self) -> None:
        """Wait until everything put so far is written."""
        await self._empty.wait()

    async def work(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._queue:
                await self._write(self._next_batch())
            if not self._held_up:
                self._empty.set()

    def _next_batch(self) -> list[Run]:
        """The oldest outcome and those of its kind that wait behind it."""
        if self._queue[0].held_up:
            return [self._queue.popleft()]
        kind = type(self._queue[0].settlement)
        batch: list[Run] = []
        others: list[Run] = []
        size = 0
        while self._queue and len(batch) < MAX_ROWS and size < MAX_BYTES:
            run = self._queue.popleft()
            if type(run.settlement) is kind and not run.held_up:
                batch.append(run)
                if kind is str:
                    size += len(run.settlement)  # type: ignore[arg-type]
            else:
                others.append(run)
        self._queue.extendleft(reversed(others))
        return batch

    async def _write(self, batch: list[Run]) -> None:
        try:
            verdicts = await self._call(batch)
        except CannotConnect:
            await self._again(batch)
        except TROUBLE as error:
            if isinstance(error, asyncpg.LockNotAvailableError):
                await self._somebody_holds(batch)
            else:
                await self._again(batch)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError, OverflowError) as error:
            if len(batch) > 1:
                for run in batch:  # one value that the database does not take must not spoil the others
                    await self._write([run])
            else:
                self._refused_value(batch[0], error)
        else:
            self._backoff.reset()
            for run in batch:
                self._settled(run, verdicts[run.claimed.task_id, run.claimed.token])

    async def _again(self, batch: list[Run]) -> None:
        self._queue.extend(batch)
        await asyncio.sleep(self._backoff.next())

    async def _somebody_holds(self, batch: list[Run]) -> None:
        """A row is locked by somebody's open transaction: let it delay none but itself."""
        if len(batch) > 1:
            for run in batch:
                await self._write([run])
            return
        run = batch[0]
        self._held_up += 1
        run.held_up += 1
        self._loop.call_later(min(30.0, 2.0**run.held_up), self._after_hold, run)

    def _after_hold(self, run: Run) -> None:
        self._held_up -= 1
        self._queue.append(run)
        self._ready.set()

    async def _call(self, batch: Sequence[Run]) -> Verdicts:
        settlements: list[Any] = [run.settlement for run in batch]
        first = settlements[0]
        if isinstance(first, Failure):
            return await self._calls.fail(settlements)
        if isinstance(first, Release):
            return await self._calls.release(settlements)
        return await self._calls.complete(
            [(run.claimed.task_id, run.claimed.token, text) for run, text in zip(batch, settlements, strict=True)]
        )

    def _refused_value(self, run: Run, error: Exception) -> None:
        """The database does not take this value: the task ends failed with what can be written of it."""
        words = error_text(f"{type(error).__name__}: {error}")
        settlement = run.settlement
        if isinstance(settlement, str):
            words = f"the database does not take the handler's result: {words}"
            self.put(run, Failure(run.claimed.task_id, run.claimed.token, words, "result_not_json"))
        elif isinstance(settlement, (Failure, Release)) and settlement.info is not None:
            self.put(run, replace(settlement, info=None))
        else:
            log.error("settle_failed", **run.log_fields(), error=words)
            self._finish_if_ended(run)  # its lease runs out and recovery has it

    def _settled(self, run: Run, verdict: str) -> None:
        settlement = run.settlement
        if verdict == "stale":
            run.gone = True
            self.counts["refused"] += 1
            if run.reason != "lease_lost" or isinstance(settlement, str):
                log.warning("result_refused", task_id=run.claimed.task_id, token=run.token, verb=_verb(settlement))
        elif isinstance(settlement, str):
            self.counts["completed"] += 1
            if self._say_completed:
                log.debug("task_completed", **run.log_fields(), attempt=run.claimed.attempt, seconds=run.seconds)
        elif isinstance(settlement, Release):
            self.counts["released"] += 1
            log.info("task_released", **run.log_fields(), code=settlement.code, delay_seconds=settlement.delay)
        elif isinstance(settlement, Failure) and settlement.code == "cancelled":
            self.counts["cancelled"] += 1
            log.info("task_cancelled", **run.log_fields(), seconds=run.seconds)
        elif isinstance(settlement, Failure):
            self.counts["failed"] += 1
            retry = settlement.retry and run.claimed.attempt < run.claimed.max_attempts
            log.warning("task_failed", **run.log_fields(), attempt=run.claimed.attempt, seconds=run.seconds,
                        code=settlement.code, error=settlement.error, retry=retry)  # fmt: skip
        self._finish_if_ended(run)

    def _finish_if_ended(self, run: Run) -> None:
        run.settled = True
        if run.ended:
            self._on_finished(run)


def _verb(settlement: Settlement | None) -> str:
    return "fail" if isinstance(settlement, Failure) else "release" if isinstance(settlement, Release) else "complete"
