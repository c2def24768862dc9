"""The one claimer of a process: asks for all free slots at once, and waits where asking would be in vain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import asyncpg

from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls, ClaimAnswer, ClaimedTask, Release
from taskgate.protocol.version import SchemaMismatch
from taskgate.worker.clock import now
from taskgate.worker.link import TROUBLE, Backoff
from taskgate.worker.refill import Refiller
from taskgate.worker.results import error_text, words

if TYPE_CHECKING:
    from taskgate.worker.runner import Runner

log = get_logger("worker")

MAX_POLL_SECONDS = 45.0
"""A claim that finds nothing asks the database for notifications for a minute: look again before it is over."""
FULL_SECONDS = (0.2, 1.5)
"""After "full" and "limited": from and to, doubling. Room that nobody else can use notifies; this finds the rest."""
FULL_PAUSE = 0.1
"""After "full" notifications are heeded after this much, since most of them tell of inserts."""
BE_BUSY_SECONDS = 0.5
PARTIAL_SECONDS = 0.01
"""After a claim that brought fewer than asked: what was free is used up, more may come at once."""
MIN_SHARE = 100
"""A claim asks for half of all slots, but for so many at least: while the tasks of one half run and are written, the
other half is claimed. Smaller claims would cost more than that gains."""
SPREAD_STEP_SECONDS, MAX_SPREAD_SECONDS = 0.00025, 0.5
"""A notification reaches every idle worker, and only one of them can win. Each waits at random within a spread of its
own, which a claim in vain widens by a step and one that brought tasks halves: so it grows with the number of idle
workers, and about two claims come each millisecond, the first at once, whatever the fleet's size.
"""
UNCONTENDED_SECONDS, MAX_CONTENDED_SECONDS = 0.01, 0.005
"""What a claim in vain took beyond the first, it mostly stood in line behind others: the spread widens by that too, up
to the second, so that a large fleet need not be woken in vain by hundreds of tasks first.
"""


class Claimer:
    """Claims for `runner`. `wake()` when a slot was freed, `notified()` when tasks may have come or the limit moved,
    `called()` when tasks came and this process was chosen to take them.
    """

    def __init__(
        self, calls: Calls, worker_id: str, types: list[str], lease: float, poll_seconds: float, runner: Runner
    ) -> None:
        self._calls = calls
        self._worker_id = worker_id
        self._types = types
        self._lease = lease
        self._poll_seconds = min(poll_seconds, MAX_POLL_SECONDS)
        self._runner = runner
        self._most = max(MIN_SHARE, -(-runner.slots.slots // 2))
        self._slot_freed = asyncio.Event()
        self._notified = asyncio.Event()
        self._anything = asyncio.Event()
        self._stopping = False
        self._last_error = ""
        self._trouble = Backoff(0.05, 2.0)
        self._full = Backoff(*FULL_SECONDS)
        self._unsure = Backoff(0.01, 1.0)
        self._spread = 0.0
        self._roused = False  # the claim was caused by a notification
        self._called = False
        self.refiller = Refiller(worker_id, types, lease, runner, self._begin, self.wake)
        self.listens_by: Callable[[], int] = lambda: 0
        """The number by which this process is woken alone; 0 while it hears nothing."""
        self._say_claimed: bool = log.is_enabled_for(logging.DEBUG)
        self.claimed = 0
        """Tasks claimed so far."""

    def wake(self) -> None:
        """A slot of this process is free again."""
        if self.refiller.under_way:
            self.refiller.freed += 1
            return
        self._slot_freed.set()
        self._anything.set()

    def notified(self) -> None:
        """The database says that there may be something to claim."""
        self._notified.set()
        self._anything.set()

    def called(self) -> None:
        """The same, and nobody else was told, so there is no need to make way."""
        self._called = True
        self.notified()

    def stop(self) -> None:
        """Claim no more: `work` returns after the claim under way."""
        self._stopping = self.refiller.stopping = True
        self._anything.set()

    async def work(self) -> None:
        """Claim until `stop`. Raises SchemaMismatch when the database was migrated out of this program's range."""
        while not self._stopping:
            free, ahead = self._runner.ask()
            if free + ahead <= 0 or self.refiller.under_way:
                # only a freed slot helps; cleared first, or an old one would make this loop spin
                self._slot_freed.clear()
                if self.refiller.under_way or sum(self._runner.ask()) <= 0:
                    with self.refiller.lacking("slot"):
                        await self._wait(None, notifications=False)
                continue
            free = min(free, self._most)
            ahead = min(ahead, self._most - free)
            self._slot_freed.clear()
            self._notified.clear()
            self._called = False
            self._anything.clear()
            sent = now()
            try:
                answer = await self._calls.claim(
                    self._worker_id, free, list(self._runner.runs), self._lease, self._types,
                    listener=self.listens_by(), ahead=ahead,
                )  # fmt: skip
            except SchemaMismatch:
                raise
            except TROUBLE:
                await self._wait(self._trouble.next(), only_stop=True)
                continue
            except Exception as error:  # refused, or an answer that cannot be read: others may follow that can
                if (text := error_text(_telling(error))) != self._last_error:
                    self._last_error = text
                    log.error("claim_failed", error=text)
                await self._wait(self._trouble.next(), only_stop=True)
                continue
            self._trouble.reset()
            self._last_error = ""
            self.refiller.claimed()
            await self._use(answer, free + ahead, sent)
        with contextlib.suppress(*TROUBLE, asyncpg.PostgresError):  # else it may be woken in others' stead
            async with asyncio.timeout(BE_BUSY_SECONDS):
                await self._calls.be_busy()

    async def _use(self, answer: ClaimAnswer, free: int, sent: float) -> None:
        notified, self._roused = self._roused, False
        took = now() - sent
        if answer.tasks:
            self._spread /= 2
            self._full.reset()
            self._unsure.reset()
            if not await self._begin(answer.tasks, sent, self._calls):
                return
            if len(answer.tasks) < free:
                with self.refiller.lacking("slot" if self._runner.ask()[0] <= 0 else ""):
                    await self._wait(PARTIAL_SECONDS * random.uniform(0.5, 1.5))
            else:
                await asyncio.sleep(0)  # let the handlers begin
        elif answer.outcome == "claimed":
            return  # taken away again before their bodies came
        elif answer.outcome == "unsure":
            self._widen(notified, took)
            await self._wait_for_news(self._unsure.next())
        elif answer.outcome == "busy":
            await self._wait(random.uniform(0.0, 0.02), only_stop=True)
        elif answer.outcome in ("full", "limited"):
            pause = FULL_PAUSE * random.uniform(0.5, 1.0)
            delay = self._full.next()
            if answer.next_due is not None:
                delay = min(delay, max(answer.next_due, 0.001))
                pause = min(pause, delay)
            # after "limited" it is known as idle, by the session that claims
            with self.refiller.lacking("room" if answer.outcome == "full" else ""):
                if not await self._wait(pause, notifications=False):
                    await self._wait(max(0.0, delay - pause))
        else:
            self._unsure.reset()
            self._full.reset()
            self._widen(notified, took)
            delay = self._poll_seconds * random.uniform(0.75, 1.25)
            if answer.next_due is not None:
                delay = min(delay, max(0.0, answer.next_due) + random.uniform(0.0, 0.005))
            await self._wait_for_news(min(delay, MAX_POLL_SECONDS))

    async def _begin(self, tasks: list[ClaimedTask], sent: float, calls: Calls) -> bool:
        """Whether these tasks, claimed by a call that was sent then, are under way now."""
        if (took := now() - sent) > self._lease / 2:
            # Too old to begin with. They are not among the tokens held, so the next claim brings them again.
            log.warning("claim_too_late", tasks=len(tasks), seconds=round(took, 3))
            return False
        if self._stopping:
            await give_back(calls, tasks)
            return False
        self.claimed += len(tasks)
        for task in tasks:
            if self._say_claimed:
                log.debug("task_claimed", task_id=task.task_id, task_type=task.task_type, token=task.token,
                          attempt=task.attempt, waited_seconds=round(task.waited_seconds, 3))  # fmt: skip
            self._runner.start(task, sent)
        self._runner.bound_wait()
        return True

    def _widen(self, notified: bool, took: float) -> None:
        if notified:
            stood = min(max(0.0, took - UNCONTENDED_SECONDS), MAX_CONTENDED_SECONDS)
            self._spread = min(self._spread + SPREAD_STEP_SECONDS + stood, MAX_SPREAD_SECONDS)

    async def _wait_for_news(self, seconds: float) -> None:
        """Until a slot is freed, at once; or somewhere in the spread after a notification that woke the whole fleet."""
        if await self._wait(seconds) and not (self._slot_freed.is_set() or self._called):
            self._roused = True
            await self._wait(random.uniform(0.0, self._spread), notifications=False)

    async def _wait(self, seconds: float | None, *, notifications: bool = True, only_stop: bool = False) -> bool:
        """Wait for a freed slot or a notification, `seconds` at most; True when one came (or the end)."""
        loop = asyncio.get_running_loop()
        until = None if seconds is None else loop.time() + seconds
        while not self._stopping:
            if not only_stop and (self._slot_freed.is_set() or (notifications and self._notified.is_set())):
                return True
            self._anything.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._anything.wait()
            except TimeoutError:
                return False
        return True


def _telling(error: Exception) -> str:
    return words(error) if isinstance(error, asyncpg.PostgresError) else f"{type(error).__name__}: {words(error)}"


async def give_back(calls: Calls, tasks: list[ClaimedTask]) -> None:
    """Release tasks that were claimed but not begun. When that fails their leases run out."""
    reason = "the worker is shutting down"
    try:
        await calls.release([Release(task.task_id, task.token, reason=reason) for task in tasks])
    except (*TROUBLE, asyncpg.PostgresError) as error:
        log.warning("release_failed", tasks=len(tasks), error=error_text(str(error)))
