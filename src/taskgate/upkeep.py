"""What runs beside the real work in every API and worker process: recovery of overdue tasks, deletion of expired
ones, and saying now and then (not a thousand times) that the database is gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import asyncpg

from taskgate.logs import get_logger
from taskgate.media.errors import StoreFailed
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import DATABASE_ERRORS
from taskgate.protocol.place import database_place

log = get_logger("upkeep")

PURGE_BATCH = 1000
LONGEST_PURGE_SECONDS = 600.0
"""The pause between two purges doubles up to this while they find nothing: an idle fleet costs the database little."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 60.0
HINT = "it goes on trying; if this lasts, check DATABASE_URL"
WRONG_HINT = "check DATABASE_URL; it goes on trying"
WRONG = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
"""What the server says of a login or a database that is not as DATABASE_URL has it (SQLSTATE class 28, 3D000)."""


class DatabaseState:
    """Whether the database answers, as far as this process knows: said when it is lost, now and then while it stays so,
    and when it is back.

    Every part of a process reports to the same object, again and again while the database is lost. `url` is where the
    database is; `clock` answers seconds.
    """

    def __init__(self, url: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._clock = clock
        self._lost_at: float | None = None
        self._say_at = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._said_wrong = False
        self._told: set[tuple[str, type[BaseException]]] = set()

    @property
    def is_lost(self) -> bool:
        return self._lost_at is not None

    def lost(self, error: BaseException) -> None:
        """A call failed with one of DATABASE_ERRORS. It is said at growing pauses, and at once when the server answers
        that the login or the database is wrong."""
        at = self._clock()
        wrong = isinstance(error, WRONG)
        if self._lost_at is None:
            self._lost_at, self._pause, self._said_wrong = at, FIRST_PAUSE_SECONDS, False
        elif at >= self._say_at:
            self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        elif self._said_wrong or not wrong:
            return
        self._say_at = at + self._pause
        self._said_wrong |= wrong
        (log.error if wrong else log.warning)(
            "database_lost",
            error=f"{type(error).__name__}: {error}".rstrip(": "),
            **(asdict(database_place(self.url)) if self.url else {}),
            seconds=round(at - self._lost_at, 3),
            hint=WRONG_HINT if wrong else HINT,
        )

    def back(self) -> None:
        """A call succeeded."""
        if self._lost_at is not None:
            log.info("database_back", seconds=round(self._clock() - self._lost_at, 3))
            self._lost_at = None

    def unexpected(self, loop: str, error: Exception) -> None:
        """A round of a loop that never ends failed for a reason that nobody thought of: each is told once."""
        if (loop, type(error)) not in self._told:
            self._told.add((loop, type(error)))
            log.error("loop_failed", loop=loop, error=f"{type(error).__name__}: {error}", exc_info=error)


async def upkeep(
    calls: Calls,
    stop: asyncio.Event,
    *,
    state: DatabaseState | None = None,
    recover_seconds: float = 10.0,
    purge_seconds: float = 60.0,
    collect: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Recover about every `recover_seconds` and purge about every `purge_seconds`, until `stop` is set.

    While there is nothing to delete the pause between purges grows, up to ten minutes.

    `collect` goes with each purge: it deletes media that no task refers to, and answers how many.

    Both are safe beside any number of others that do the same. Never raises for what the database says: the next
    round tries again.
    """
    state = state or DatabaseState()
    purge_at = time.monotonic() + purge_seconds * random.random()
    pause = purge_seconds
    while not await _stopped_within(stop, recover_seconds * random.uniform(0.5, 1.0)):
        try:
            recovered = await calls.recover()
            state.back()
            if recovered:
                log.info("tasks_recovered", count=recovered)
            if time.monotonic() >= purge_at:
                found = await _purge(calls, stop) + (await _collect(collect) if collect is not None else 0)
                pause = purge_seconds if found else longer(pause)
                purge_at = time.monotonic() + pause * random.uniform(0.5, 1.0)
        except DATABASE_ERRORS as error:
            state.lost(error)
        except asyncpg.PostgresError as error:
            log.warning("upkeep_failed", error=str(error))
        except Exception as error:  # the next round may find what this one stumbled over gone
            state.unexpected("upkeep", error)


def longer(pause: float) -> float:
    """Seconds until the next purge, after one that found nothing and that came after `pause`."""
    return max(pause, min(pause * 2, LONGEST_PURGE_SECONDS))


async def _purge(calls: Calls, stop: asyncio.Event) -> int:
    """Batch after batch while there is something to delete; short transactions, with a breath between them."""
    purged = 0
    while (count := await calls.purge(PURGE_BATCH)) > 0:
        purged += count
        if count < PURGE_BATCH or await _stopped_within(stop, 0.05):
            break
    if purged:
        log.info("tasks_purged", count=purged)
    return purged


async def _collect(collect: Callable[[], Awaitable[int]]) -> int:
    try:
        collected = await collect()
    except StoreFailed as error:
        log.warning("media_store_failed", error=str(error))
        return 1  # what is left is tried again soon
    if collected:
        log.info("media_collected", count=collected)
    return collected


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
