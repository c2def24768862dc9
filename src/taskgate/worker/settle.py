"""The completion buffer: outcomes are written in batches as they gather.

A lone outcome goes at once; while a write is under way the next ones gather for the batch after it. An outcome
whose write failed for the database's sake is kept and tried again: the token makes a repeat harmless.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls, Failure, Release, Verdicts
from taskgate.worker.clock import now
from taskgate.worker.link import TROUBLE, Backoff
from taskgate.worker.loops import say_failed
from taskgate.worker.results import error_text, words
from taskgate.worker.run import Run, Settlement

if TYPE_CHECKING:
    from taskgate.worker.refill import Refiller

log = get_logger("worker")

MAX_ROWS = 500
MAX_BYTES = 8 * 1024**2
"""A batch is cut at so many bytes of results, so that one large result does not delay hundreds."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0
"""An outcome whose row somebody else holds is tried again after so long, doubling."""
HOLD_SECONDS = 2.0
"""A token that cannot be settled is held so long, and once more its lease, beyond its lease. The database takes it
back a second after the lease; one that was restarted waits for a lease from then.
"""


class Settler:
    """Writes settlements; `on_finished` is called for each run that has ended and is settled."""

    def __init__(self, calls: Calls, on_finished: Callable[[Run], None]) -> None:
        self._calls = calls
        self._on_finished = on_finished
        self._queue: deque[Run] = deque()
        self._ready = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._backoff = Backoff(0.05, 2.0)
        self._aside = 0
        self._loop = asyncio.get_running_loop()
        self._say_completed: bool = log.is_enabled_for(logging.DEBUG)
        self.refiller: Refiller | None = None
        """Claims along with a write."""
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
        if run.hold_until and (left := run.hold_until - now()) > 0:
            self._loop.call_later(left, self.finish, run)
        else:
            self._on_finished(run)

    @property
    def is_flushed(self) -> bool:
        """Whether everything put so far is written."""
        return self._empty.is_set()

    async def flushed(self) -> None:
        """Wait until everything put so far is written."""
        await self._empty.wait()

    async def work(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            if not self._queue:  # as it may be after an error that nobody thought of
                await self._ready.wait()
            self._ready.clear()
            while self._queue:
                await self._write(self._next_batch())
            if not self._aside:
                self._empty.set()

    def _next_batch(self) -> list[Run]:
        """The oldest outcome and those of its kind that wait behind it."""
        kind = type(self._queue[0].settlement)
        batch: list[Run] = []
        others: list[Run] = []
        size = 0
        while self._queue and len(batch) < MAX_ROWS and size < MAX_BYTES:
            run = self._queue.popleft()
            if type(run.settlement) is kind:
                batch.append(run)
                if kind is str:
                    size += len(run.settlement)  # type: ignore[arg-type]
            else:
                others.append(run)
        self._queue.extendleft(reversed(others))
        return batch

    async def _write(self, batch: list[Run]) -> None:
        results = _results(batch)
        refill = None
        if self.refiller is not None and results:
            refill = self.refiller.ask(len(results), sum(len(text) for _, _, text in results))
        answer = None
        try:
            if refill is None:
                verdicts = await self._call(batch)
            else:
                verdicts, answer = await self._calls.complete_and_claim(
                    results, refill.worker_id, refill.slots, refill.held, refill.lease, refill.types, ahead=refill.ahead
                )
        except Exception as error:
            if self.refiller is not None and refill is not None:
                self.refiller.failed(error)
            if isinstance(error, TROUBLE) and not isinstance(error, ValueError):  # that is asyncpg's own refusal
                await self._again(batch)
            elif refill is not None:
                await self._write(batch)  # it may be the claim
            elif len(batch) > 1:
                for run in batch:  # one value that the database does not take must not spoil the others
                    await self._write([run])
            else:
                self._refused(batch[0], error)
            return
        self._backoff.reset()
        for run in batch:
            try:
                self._answered(run, verdicts.get((run.claimed.task_id, run.claimed.token), "busy"))
            except Exception as error:  # its neighbours are settled all the same
                say_failed("settler", error)
                self._finish_if_ended(run)
        if self.refiller is not None and refill is not None and answer is not None:
            try:
                await self.refiller.done(refill, answer, self._calls)
            except Exception as error:  # what was not begun comes with the next claim
                say_failed("refill", error)

    async def _again(self, batch: list[Run]) -> None:
        self._queue.extend(batch)
        await asyncio.sleep(self._backoff.next())

    def _put_aside(self, run: Run) -> None:
        """Somebody's open transaction holds its row: it is asked for again while the rest flows on.

        Nobody else can have the task meanwhile, so its outcome is kept for as long again as its lease.
        """
        lease = run.lease_until - run.renewed_at
        if run.gone or now() > run.lease_until + lease:
            log.error("settle_failed", **run.log_fields(), error="somebody holds its row, and its lease is over")
            self._finish_if_ended(run)
            return
        run.pause = min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, run.pause * 2))
        self._aside += 1
        self._loop.call_later(run.pause, self._put_back, run)

    def _put_back(self, run: Run) -> None:
        self._aside -= 1
        self._queue.append(run)
        self._ready.set()

    async def _call(self, batch: Sequence[Run]) -> Verdicts:
        settlements: list[Any] = [run.settlement for run in batch]
        first = settlements[0]
        if isinstance(first, Failure):
            return await self._calls.fail(settlements)
        if isinstance(first, Release):
            return await self._calls.release(settlements)
        return await self._calls.complete(_results(batch))

    def _refused(self, run: Run, error: Exception) -> None:
        """The database does not take this value: the attempt fails, with nothing of the handler's own in the row."""
        text = error_text(f"{type(error).__name__}: {words(error)}")
        if run.refused:
            log.error("settle_failed", **run.log_fields(), error=text)
            # given up, the token would come with the next claim, to be run and refused again
            run.hold_until = 2 * run.lease_until - run.renewed_at + HOLD_SECONDS
            self._finish_if_ended(run)
            return
        run.refused = True
        before = run.settlement
        again = isinstance(before, Release) or (isinstance(before, Failure) and before.retry)
        text = error_text(f"the outcome could not be written: {text}")
        self.put(run, Failure(run.claimed.task_id, run.token, text, "outcome_refused", retry=again))

    def _answered(self, run: Run, verdict: str) -> None:
        settlement = run.settlement
        if verdict == "busy":
            self._put_aside(run)
            return
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
            say = log.debug if run.reason == "no_slot" else log.info
            say("task_released", **run.log_fields(), code=settlement.code, delay_seconds=settlement.delay)
        elif isinstance(settlement, Failure) and settlement.code == "cancelled":
            self.counts["cancelled"] += 1
            log.info("task_cancelled", **run.log_fields(), seconds=run.seconds)
        elif isinstance(settlement, Failure):
            self.counts["failed"] += 1
            retry = settlement.retry and run.claimed.attempt < run.claimed.max_attempts
            log.warning("task_failed", **run.log_fields(), attempt=run.claimed.attempt, seconds=run.seconds,
                        code=settlement.code, error=settlement.error, retry=retry,
                        **_traceback(settlement))  # fmt: skip
        self._finish_if_ended(run)

    def _finish_if_ended(self, run: Run) -> None:
        run.settled = True
        if run.ended:
            self.finish(run)


def _results(batch: Sequence[Run]) -> list[tuple[str, int, str]]:
    return [
        (run.claimed.task_id, run.claimed.token, run.settlement) for run in batch if isinstance(run.settlement, str)
    ]


def _traceback(failure: Failure) -> dict[str, str]:
    """The log field of an exception that nobody expected."""
    info = json.loads(failure.info) if failure.code == "handler_error" and failure.info else None
    found = info.get("traceback") if isinstance(info, dict) else None
    return {"traceback": found} if isinstance(found, str) else {}


def _verb(settlement: Settlement | None) -> str:
    return "fail" if isinstance(settlement, Failure) else "release" if isinstance(settlement, Release) else "complete"
