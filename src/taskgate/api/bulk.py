"""Many tasks in one body, in one transaction: while a chunk is written, the next one is checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import asyncpg

from taskgate.api.bodies import item_problem, parse_object, split_array
from taskgate.api.bulk_once import submit_many_once
from taskgate.api.context import Context
from taskgate.api.options import RESERVED
from taskgate.api.problems import Problem, database_unavailable, invalid
from taskgate.api.rows import IN_A_THREAD, exists, given_up, new_task, refused
from taskgate.api.types import TaskType
from taskgate.api.upstreams import UnknownUpstream
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import DATABASE_ERRORS, ROW_ERRORS

MAX_ITEMS = 100_000
CHUNK_ROWS = 1000
CHUNK_BYTES = 2 * 1024**2
MAX_TOLD = 20
KEY_OPTION = b"idempotency_key"
SLICE_SECONDS = 0.001
"""Checking lets the others on this event loop have their turn so often."""


async def submit_many(
    context: Context,
    tenant: str,
    task_type: TaskType,
    raw: bytes,
    fixed: dict[str, str],
    *,
    lines: bool,
    key: str | None = None,
) -> tuple[bytes, bool]:
    """The response body, once all are committed, and whether some were there before. `key`: the idempotency key of
    the whole body. Raises Problem, and then nothing was written.
    """
    if key is None and KEY_OPTION not in raw:
        items = _Items(context, task_type)
        await items.open(raw, lines)
        first = await items.chunk()
        if not first:
            raise _empty()
        try:
            async with context.bulk_lanes.turn(tenant):
                await _write(context, items, first, fixed)
        except _Keyed:
            pass  # nothing was written; the option's name stood there in another spelling
        else:
            return bytes(items.answer + b"]\n"), False
    items = _Items(context, task_type)
    await items.open(raw, lines)
    tasks: list[NewTask] = []
    while chunk := await items.chunk():
        tasks += chunk
    if not tasks:
        raise _empty()

    async def write(calls: Calls, some: list[NewTask]) -> None:
        await _write_chunks(calls, some, items.own, fixed)

    return await submit_many_once(context, tenant, tasks, items.own, items.keys, key, write)


def _empty() -> Problem:
    return invalid("empty_array", "there is no task in the body: send at least one")


class _Items:
    """The tasks of a body, checked and told in order."""

    def __init__(self, context: Context, task_type: TaskType) -> None:
        self._context = context
        self._task_type = task_type
        self._unread: Iterator[tuple[int | None, bytes]] = iter(())
        self._read = 0
        self.own: dict[str, int] = {}
        """The index of each task whose id the caller brought."""
        self.keys: dict[int, str] = {}
        """By index, the idempotency keys of single tasks."""
        self.answer = bytearray()

    async def open(self, raw: bytes, lines: bool) -> None:
        """Raises Problem."""
        if lines:
            many = raw.count(b"\n") >= MAX_ITEMS and sum(1 for _ in _lines(raw)) > MAX_ITEMS
            self._unread = _lines(raw)
        else:
            parts = split_array(raw) if len(raw) < IN_A_THREAD else await self._context.beside(split_array, raw)
            many = len(parts) > MAX_ITEMS
            self._unread = ((None, bytes(part)) for part in parts)
        if many:
            raise invalid("too_many_items", f"one body holds {MAX_ITEMS} tasks at most: send the rest in another")

    async def chunk(self) -> list[NewTask]:
        """The next tasks, none at the end. Raises Problem at the first that is wrong."""
        tasks: list[NewTask] = []
        size = 0
        pause = time.perf_counter() + SLICE_SECONDS
        for line, item in self._unread:
            try:
                task = await self._checked(item)
            except Problem as problem:
                raise item_problem(problem, self._read, line) from None
            tasks.append(task)
            size += len(item)
            self.answer += b',{"task_id":"' if self._read else b'[{"task_id":"'
            self.answer += task.task_id.encode()
            self.answer += b'","status":"pending"}'
            self._read += 1
            if len(tasks) == CHUNK_ROWS or size >= CHUNK_BYTES:
                break
            if time.perf_counter() > pause:
                await asyncio.sleep(0)
                pause = time.perf_counter() + SLICE_SECONDS
        return tasks

    async def _checked(self, item: bytes) -> NewTask:
        try:
            return self._task(item) if len(item) < IN_A_THREAD else await self._context.beside(self._task, item)
        except UnknownUpstream:
            await self._context.types.routing.refresh()
            return self._task(item)

    def _task(self, item: bytes) -> NewTask:
        task, brought, key = new_task(self._task_type, parse_object(item), {}, self._context.types.routing)
        if key is not None:
            self.keys[self._read] = key
        if brought:
            if task.task_id in self.own:
                why = f"the id {task.task_id} stands in this body twice"
                raise invalid("duplicate_task_id", why, f"/{RESERVED}/task_id")
            self.own[task.task_id] = self._read
        return task


def _lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their number from 1."""
    start, number = 0, 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        end = len(raw) if end < 0 else end
        number += 1
        line = raw[start:end].strip()
        if line:
            yield number, line
        start = end + 1


class _Taken(Exception):
    """Some ids of a chunk exist."""


class _Keyed(Exception):
    """A task has an idempotency key, so the whole body has to be known first."""


async def _write_chunks(calls: Calls, tasks: list[NewTask], own: dict[str, int], fixed: dict[str, str]) -> None:
    """Raises Problem when an id is taken."""
    for chunk in _chunks(tasks):
        outcomes = await calls.enqueue(chunk, tenant=fixed.get("tenant", ""), traceparent=fixed.get("traceparent"))
        taken = [task.task_id for task, outcome in zip(chunk, outcomes, strict=True) if outcome == "exists"]
        if taken:
            raise _exists(taken[:MAX_TOLD], own)


def _chunks(tasks: list[NewTask]) -> Iterator[list[NewTask]]:
    chunk: list[NewTask] = []
    size = 0
    for task in tasks:
        if chunk and (len(chunk) == CHUNK_ROWS or size + len(task.request) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(task)
        size += len(task.request)
    if chunk:
        yield chunk


def _exists(taken: Sequence[str], own: dict[str, int]) -> Problem:
    return exists([(f"/{own[each]}/{RESERVED}/task_id", each) for each in taken])


async def _write(context: Context, items: _Items, chunk: list[NewTask], fixed: dict[str, str]) -> None:
    first = chunk[0].task_id
    try:
        async with context.pool.acquire() as connection, connection.transaction():
            await _write_all(Calls(connection, context.database.schema), items, chunk, fixed)
    except _Taken as taken:
        while await items.chunk():
            pass  # what is wrong with the body itself is told first, wherever it stands
        raise _exists(taken.args, items.own) from None
    except DATABASE_ERRORS as error:
        context.state.lost(error)
        if items.own or not await _was_committed(context, first):
            raise database_unavailable(first) from None
    except ROW_ERRORS as error:
        raise refused(error) from None
    except asyncpg.PostgresError as error:
        raise await given_up(context, error, first) from None


async def _write_all(calls: Calls, items: _Items, chunk: list[NewTask], fixed: dict[str, str]) -> None:
    """Raises Problem, _Taken, and what the database raises."""
    while chunk:
        if items.keys:
            raise _Keyed
        tenant, traceparent = fixed.get("tenant", ""), fixed.get("traceparent")
        writing = calls.enqueue(chunk, tenant=tenant, traceparent=traceparent)
        outcomes, following = await asyncio.gather(writing, items.chunk(), return_exceptions=True)
        if isinstance(following, BaseException):
            raise following
        if isinstance(outcomes, BaseException):
            raise outcomes
        taken = [task.task_id for task, outcome in zip(chunk, outcomes, strict=True) if outcome == "exists"]
        if taken:
            raise _Taken(*taken[:MAX_TOLD])
        chunk = following


async def _was_committed(context: Context, task_id: str) -> bool:
    """The connection may have been lost after the commit. One transaction: one id made here tells of all."""
    try:
        return bool(await context.calls.get([task_id]))
    except (*DATABASE_ERRORS, asyncpg.PostgresError):
        return False
