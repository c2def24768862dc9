"""Gathers concurrent single submissions into one insert.

A lone request goes at once. While an insert is under way newcomers gather for the next; when it takes long or many
gather, another connection helps. Whoever waits gets an answer only after the commit of its own row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import asyncpg

from taskgate.protocol.calls import NewTask
from taskgate.protocol.connect import DATABASE_ERRORS, ROW_ERRORS
from taskgate.upkeep import DatabaseState


class Enqueue(Protocol):
    async def __call__(self, tasks: Sequence[NewTask], /) -> list[str]: ...


class Overloaded(Exception):
    """More is waiting to be written than this process takes."""


class NotWritten(Exception):
    """The database refused this row (and only this row, as far as it knows): the row's own error is the cause."""


class NotNow(Exception):
    """The database gave the whole insert up (a statement timeout, a full disk): nothing was written."""


class Uncertain(Exception):
    """The database went away or gave up, and could not be asked whether the row was written."""


@dataclass(frozen=True, slots=True)
class Bounds:
    rows: int = 200
    """Rows of one insert."""
    bytes: int = 4 * 1024**2
    """Request text of one insert; a single larger row goes alone."""
    queued_rows: int = 10_000
    queued_bytes: int = 64 * 1024**2
    lanes: int = 4
    """Inserts under way at once."""
    patience: float = 0.02
    """Seconds after which newcomers do not wait any longer for the insert under way."""
    seconds: float = 20.0
    """One insert, in all, with getting a connection."""


@dataclass(slots=True, eq=False)
class _Row:
    task: NewTask
    size: int
    answer: asyncio.Future[None]


class Coalescer:
    """`enqueue` writes tasks whose ids this process made: `exists` means that an earlier try was written."""

    def __init__(
        self,
        enqueue: Enqueue,
        state: DatabaseState,
        bounds: Bounds | None = None,
        observe: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self._enqueue = enqueue
        self._state = state
        self._bounds = bounds or Bounds()
        self._observe = observe
        self._waiting: deque[_Row] = deque()
        self._queued_bytes = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._scheduled: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # asking for it costs a system call up to Python 3.11

    @property
    def queued(self) -> int:
        return len(self._waiting)

    async def submit(self, task: NewTask) -> None:
        """Returns once the row is committed. Raises Overloaded, NotWritten, NotNow or Uncertain."""
        size = len(task.request)
        bounds = self._bounds
        if len(self._waiting) >= bounds.queued_rows or self._queued_bytes + size > bounds.queued_bytes:
            raise Overloaded
        loop = self._loop = self._loop or asyncio.get_running_loop()
        row = _Row(task, size, loop.create_future())
        self._waiting.append(row)
        self._queued_bytes += size
        if self._scheduled is None:
            # after this turn of the loop, so that requests that came in together go together
            if not self._under_way:
                self._scheduled = loop.call_soon(self._start)
            elif len(self._under_way) < bounds.lanes:
                self._scheduled = loop.call_later(bounds.patience, self._start)
        await row.answer

    def _start(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        while self._waiting and len(self._under_way) < self._bounds.lanes:
            task = asyncio.get_running_loop().create_task(self._write_all(self._next_batch()))
            self._under_way.add(task)
            task.add_done_callback(self._ended)
        # what is left goes when a lane is free

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._waiting:
            self._start()

    def _next_batch(self) -> list[_Row]:
        rows: list[_Row] = []
        size = 0
        while self._waiting and len(rows) < self._bounds.rows:
            row = self._waiting[0]
            if rows and size + row.size > self._bounds.bytes:
                break
            rows.append(self._waiting.popleft())
            size += row.size
            self._queued_bytes -= row.size
        return rows

    async def _write_all(self, rows: list[_Row]) -> None:
        self._observe(len(rows))
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await self._write(rows)
        except BaseException as error:
            given_up = isinstance(error, asyncpg.PostgresError) and not isinstance(error, DATABASE_ERRORS)
            _fail(rows, NotNow(str(error)) if given_up else Uncertain(), error)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, DATABASE_ERRORS):
                self._state.lost(error)
        else:
            self._state.back()

    async def _write(self, rows: list[_Row]) -> None:
        """All rows or, where the database refuses some, all but those: the batch is halved until they are found."""
        tasks = [row.task for row in rows]
        try:
            try:
                await self._enqueue(tasks)
            except DATABASE_ERRORS:
                # The commit may have happened or not. The same ids once more write what is missing and
                # change nothing else, so the answer is certain either way.
                try:
                    await self._enqueue(tasks)
                except (*DATABASE_ERRORS, *ROW_ERRORS):  # of the latter no try can have been written
                    raise
                except asyncpg.PostgresError as error:
                    raise Uncertain from error
        except ROW_ERRORS as error:
            if len(rows) == 1:
                _fail(rows, NotWritten(str(error)), error)
                return
            middle = len(rows) // 2
            await self._write(rows[:middle])
            await self._write(rows[middle:])
            return
        for row in rows:
            if not row.answer.done():
                row.answer.set_result(None)


def _fail(rows: list[_Row], answer: Exception, cause: BaseException) -> None:
    for row in rows:
        if not row.answer.done():
            each = type(answer)(*answer.args)
            each.__cause__ = cause
            row.answer.set_exception(each)
