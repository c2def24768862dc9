"""Many tasks in one body: each is checked first, then all are written in one transaction, in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg

from taskgate.api.bodies import item_problem, parse_object, split_array
from taskgate.api.context import Context
from taskgate.api.options import RESERVED
from taskgate.api.problems import Problem, database_unavailable, invalid
from taskgate.api.rows import ROW_ERRORS, exists, given_up, new_task, refused
from taskgate.api.types import TaskType
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import DATABASE_ERRORS

MAX_ITEMS = 100_000
CHUNK_ROWS = 1000
CHUNK_BYTES = 2 * 1024**2
MAX_TOLD = 20


async def submit_many(
    context: Context, task_type: TaskType, raw: bytes, fixed: dict[str, str], *, lines: bool
) -> bytes:
    """The response body, once all are committed. Raises Problem, and then nothing was written."""
    tasks, own = await context.beside(lambda body: _build(task_type, body, fixed, lines), raw)
    async with context.bulk_lanes:
        await _write(context, tasks, own)
    made = (b'{"task_id":"%b","status":"pending"}' % task.task_id.encode() for task in tasks)
    return b"[" + b",".join(made) + b"]\n"


def _build(task_type: TaskType, raw: bytes, fixed: dict[str, str], lines: bool) -> tuple[list[NewTask], dict[str, int]]:
    """The rows, and the index of each whose id the caller brought."""
    tasks: list[NewTask] = []
    own: dict[str, int] = {}
    for index, (line, item) in enumerate(_lines(raw) if lines else _items(raw)):
        if index == MAX_ITEMS:
            raise invalid("too_many_items", f"one body holds {MAX_ITEMS} tasks at most: send the rest in another")
        try:
            task, brought = new_task(task_type, parse_object(item), fixed)
            if brought:
                if task.task_id in own:
                    why = f"the id {task.task_id} stands in this body twice"
                    raise invalid("duplicate_task_id", why, f"/{RESERVED}/task_id")
                own[task.task_id] = index
        except Problem as problem:
            raise item_problem(problem, index, line) from None
        tasks.append(task)
    if not tasks:
        raise invalid("empty_array", "there is no task in the body: send at least one")
    return tasks, own


def _items(raw: bytes) -> Iterator[tuple[None, bytes]]:
    for item in split_array(raw):
        yield None, bytes(item)


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


def _chunks(tasks: list[NewTask]) -> Iterator[list[NewTask]]:
    chunk: list[NewTask] = []
    size = 0
    for task in tasks:
        if chunk and (len(chunk) == CHUNK_ROWS or size + len(task.request) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(task)
        size += len(task.request)
    yield chunk


async def _write(context: Context, tasks: list[NewTask], own: dict[str, int]) -> None:
    first = tasks[0].task_id
    try:
        async with context.pool.acquire() as connection, connection.transaction():
            calls = Calls(connection, context.database.schema)
            for chunk in _chunks(tasks):
                outcomes = await calls.enqueue(chunk)
                taken = [task.task_id for task, outcome in zip(chunk, outcomes, strict=True) if outcome == "exists"]
                if taken:
                    raise exists([(f"/{own[each]}/{RESERVED}/task_id", each) for each in taken[:MAX_TOLD]])
    except DATABASE_ERRORS as error:
        context.state.lost(error)
        if own or not await _was_committed(context, first):
            raise database_unavailable(first) from None
    except ROW_ERRORS as error:
        raise refused(error) from None
    except asyncpg.PostgresError as error:
        raise await given_up(context, error, first) from None


async def _was_committed(context: Context, task_id: str) -> bool:
    """The connection may have been lost after the commit. One transaction: one id made here tells of all."""
    try:
        return bool(await context.calls.get([task_id]))
    except (*DATABASE_ERRORS, asyncpg.PostgresError):
        return False
