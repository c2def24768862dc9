"""Holding answers until tasks are final: thousands of waiters, one LISTEN connection, one look-up a second for all.

A notification only makes the answer quick. The poll finds what a lost one hid, and is all there is behind a
transaction-mode pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from taskgate.api.lookup import MAX_IDS, Lookup, LookupFailed, get_each
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import DATABASE_ERRORS
from taskgate.upkeep import DatabaseState

FINAL = ("completed", "failed")
POLL_SECONDS = 1.0
ASK_SECONDS = 60.0
"""Notifications are asked for so long at once, and anew when half of it is over while somebody waits."""
ALIVE_SECONDS = 10.0
RECONNECT_SECONDS = (0.2, 5.0)

Connect = Callable[[], Awaitable["asyncpg.Connection[Any]"]]


class Waiter:
    def __init__(
        self, lookup: Lookup, calls: Calls, state: DatabaseState, connect: Connect | None, channel: str
    ) -> None:
        """`connect` opens the listening connection; None: poll only."""
        self._lookup = lookup
        self._calls = calls
        self._state = state
        self._connect = connect
        self._channel = channel
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._somebody = asyncio.Event()
        self._asked_until = 0.0
        self._released = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        return sum(len(futures) for futures in self._waiting.values())

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._poll())]
        if self._connect is not None:
            self._tasks.append(loop.create_task(self._listen(self._connect)))

    async def stop(self) -> None:
        self.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release(self) -> None:
        """Everybody is answered with what there is: the process stops."""
        self._released = True
        for task_id in list(self._waiting):
            self._wake(task_id)

    async def final(
        self, task_id: str, seconds: float, may_see: Callable[[Any], bool], *, is_there: bool = False
    ) -> Any:
        """The task's record once it is final, or as it is after `seconds`; None if it is not there for the caller.

        Raises LookupFailed: at once if the database cannot say that there is such a task (`is_there`: we know),
        else when time is up. Cancel it when the client is gone.
        """
        deadline = time.monotonic() + seconds
        while True:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(task_id, set()).add(woken)
            self._somebody.set()
            try:
                if seconds:
                    await self._ask_for_notifications()
                try:
                    row = await self._lookup.get(task_id)
                except LookupFailed:
                    left = min(deadline - time.monotonic(), POLL_SECONDS)
                    if not is_there or left <= 0 or self._released:
                        raise
                else:
                    left = deadline - time.monotonic()
                    if row is None or not may_see(row) or row["status"] in FINAL or left <= 0 or self._released:
                        return row
                    is_there = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken, left)
            finally:
                self._forget(task_id, woken)

    def _forget(self, task_id: str, woken: asyncio.Future[None]) -> None:
        futures = self._waiting.get(task_id)
        if futures is not None:
            futures.discard(woken)
            if not futures:
                del self._waiting[task_id]
                if not self._waiting:
                    self._somebody.clear()

    def _wake(self, task_id: str) -> None:
        for woken in self._waiting.get(task_id, ()):
            if not woken.done():
                woken.set_result(None)

    async def _ask_for_notifications(self) -> None:
        now = time.monotonic()
        if self._connect is None or self._asked_until - now > ASK_SECONDS / 2:
            return
        before, self._asked_until = self._asked_until, now + ASK_SECONDS
        try:
            await self._calls.await_done(ASK_SECONDS)
        except (*DATABASE_ERRORS, asyncpg.PostgresError):
            self._asked_until = before  # the poll is there all the same
        except Exception as error:
            self._asked_until = before
            self._state.unexpected("await_done", error)

    async def _poll(self) -> None:
        """About every second one look-up for all who wait, whoever notifies or not."""
        while True:
            await self._somebody.wait()
            await asyncio.sleep(POLL_SECONDS * random.uniform(0.8, 1.2))
            if not self._waiting:
                continue
            try:
                await self._look()
            except DATABASE_ERRORS as error:
                self._state.lost(error)
            except asyncpg.PostgresError:
                pass
            except Exception as error:  # all who wait live on this loop
                self._state.unexpected("poll", error)

    async def _look(self) -> None:
        """Wakes those whose task is final, gone, or cannot be read: their own look-up says which."""
        await self._ask_for_notifications()
        ids = list(self._waiting)
        for start in range(0, len(ids), MAX_IDS):
            some = ids[start : start + MAX_IDS]
            rows, _ = await get_each(self._calls.get, some, 0)
            for task_id in some:
                row = rows.get(task_id)
                if row is None or row["status"] in FINAL:
                    self._wake(task_id)

    async def _listen(self, connect: Connect) -> None:
        pause = RECONNECT_SECONDS[0]
        while True:
            connection: asyncpg.Connection[Any] | None = None
            try:
                connection = await connect()
                await connection.add_listener(self._channel, self._notified)
                self._state.back()
                self._asked_until = 0.0  # after a restart of the database nobody remembers
                pause = RECONNECT_SECONDS[0]
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                while not gone.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(gone.wait(), ALIVE_SECONDS)
                    await connection.fetchval("SELECT 1", timeout=ALIVE_SECONDS)
            except (*DATABASE_ERRORS, asyncpg.PostgresError) as error:
                if isinstance(error, DATABASE_ERRORS):
                    self._state.lost(error)
            except Exception as error:
                self._state.unexpected("listen", error)
            finally:
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, RECONNECT_SECONDS[1])

    def _notified(self, _connection: Any, _pid: int, _channel: str, payload: Any) -> None:
        for task_id in str(payload).split(","):
            self._wake(task_id)
