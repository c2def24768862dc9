"""Concurrent reads of single tasks, gathered into one look-up. Nothing is kept beyond the instant: a request is
served only by a look-up that began after it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import asyncpg

from taskgate.logs import get_logger
from taskgate.protocol.connect import DATABASE_ERRORS
from taskgate.upkeep import DatabaseState

log = get_logger("api")

MAX_IDS = 200
SECONDS = 15.0
LARGE_BYTES = 64 * 1024
"""Results that take more on disk are read one at a time."""


class Get(Protocol):
    async def __call__(self, task_ids: Sequence[str], /, *, result_bytes: int | None = ...) -> dict[str, Any]: ...


class LookupFailed(Exception):
    """The database does not answer."""


class Unreadable(Exception):
    """The database has the record, and it cannot be read: the error tells why."""


def _of_a_record(error: BaseException) -> bool:
    """Whether one record may be the trouble, rather than the database or the statement as a whole."""
    if isinstance(error, asyncpg.PostgresError):
        return isinstance(error, asyncpg.DataError | asyncpg.InternalServerError)  # the latter: corrupted
    return isinstance(error, Exception) and not isinstance(error, DATABASE_ERRORS)


async def get_each(
    get: Get, ids: Sequence[str], result_bytes: int | None
) -> tuple[dict[str, Any], dict[str, Exception]]:
    """The records, and the errors of those that cannot be read: halved until they are found, they fail no others.

    Raises what says that the database or the statement is the trouble.
    """
    try:
        return await get(ids, result_bytes=result_bytes), {}
    except Exception as error:
        if not _of_a_record(error):
            raise
        if len(ids) == 1:
            return {}, {ids[0]: error}
    middle = len(ids) // 2
    rows, errors = await get_each(get, ids[:middle], result_bytes)
    more_rows, more_errors = await get_each(get, ids[middle:], result_bytes)
    return rows | more_rows, errors | more_errors


class Lookup:
    def __init__(self, get: Get, state: DatabaseState, lanes: int = 2) -> None:
        self._get = get
        self._state = state
        self._lanes = lanes
        self._large = asyncio.Semaphore(lanes)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._reading_large: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def get(self, task_id: str) -> Any:
        """The record of queries/get.sql (of any tenant), None if there is none.

        Raises LookupFailed, and Unreadable.
        """
        answer = self._waiting.get(task_id)
        if answer is None:
            loop = asyncio.get_running_loop()
            answer = self._waiting[task_id] = loop.create_future()
            if not self._scheduled and len(self._under_way) < self._lanes:
                self._scheduled = True
                loop.call_soon(self._start)
        return await asyncio.shield(answer)

    def _start(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._under_way) < self._lanes:
            ids = list(self._waiting)[:MAX_IDS]
            batch = {task_id: self._waiting.pop(task_id) for task_id in ids}
            task = asyncio.get_running_loop().create_task(self._read(batch))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._start()

    async def _read(self, batch: dict[str, asyncio.Future[Any]]) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                rows, errors = await self._twice(list(batch), LARGE_BYTES)
        except BaseException as error:
            self._fail(list(batch.values()), error)
            return
        self._state.back()
        for task_id, answer in batch.items():
            row = rows.get(task_id)
            if task_id in errors:
                self._refuse(task_id, answer, errors[task_id])
            elif row is not None and row["result_left_out"]:
                task = asyncio.get_running_loop().create_task(self._read_large(task_id, answer))
                self._reading_large.add(task)
                task.add_done_callback(self._reading_large.discard)
            elif not answer.done():
                answer.set_result(row)

    async def _read_large(self, task_id: str, answer: asyncio.Future[Any]) -> None:
        try:
            async with self._large, asyncio.timeout(SECONDS):
                rows, errors = await self._twice([task_id], None)
        except BaseException as error:
            self._fail([answer], error)
            return
        if task_id in errors:
            self._refuse(task_id, answer, errors[task_id])
        elif not answer.done():
            answer.set_result(rows.get(task_id))

    async def _twice(self, ids: list[str], result_bytes: int | None) -> tuple[dict[str, Any], dict[str, Exception]]:
        try:
            return await get_each(self._get, ids, result_bytes)
        except DATABASE_ERRORS:
            return await get_each(self._get, ids, result_bytes)  # an old connection may be what was lost

    def _refuse(self, task_id: str, answer: asyncio.Future[Any], error: Exception) -> None:
        log.error("task_unreadable", task_id=task_id[:200], error=f"{type(error).__name__}: {error}")
        if not answer.done():
            answer.set_exception(Unreadable(f"{type(error).__name__}: {error}"))
            answer.exception()  # seen, also when nobody waits any more

    def _fail(self, answers: list[asyncio.Future[Any]], error: BaseException) -> None:
        for answer in answers:
            if not answer.done():
                answer.set_exception(LookupFailed(str(error)))
                answer.exception()  # seen, also when nobody waits any more
        if isinstance(error, DATABASE_ERRORS):
            self._state.lost(error)
        elif not isinstance(error, asyncpg.PostgresError):
            raise error
