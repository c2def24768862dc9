"""Many tasks under idempotency keys: one key for the whole body, or some of its tasks with keys of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from taskgate.api.context import Context
from taskgate.api.idempotency import as_problems, mark_of, mismatch
from taskgate.api.options import RESERVED
from taskgate.api.problems import invalid
from taskgate.fingerprint import of_all
from taskgate.protocol.calls import Calls, NewTask

Write = Callable[[Calls, list[NewTask]], Awaitable[None]]

MAX_TOLD = 20
KEYS_AT_ONCE = 1000


async def submit_many_once(
    context: Context,
    tenant: str,
    tasks: list[NewTask],
    own: dict[str, int],
    keys: dict[int, str],
    key: str | None,
    write: Write,
) -> tuple[bytes, bool]:
    """`keys`: by index, those of single tasks; `key`: that of the whole body; `write` enqueues some of the tasks in
    the transaction of the calls it is given. Answers as bulk.submit_many.
    """
    if key is not None and keys:
        why = "stands beside the header Idempotency-Key, which covers the whole body: give one of them"
        raise invalid("invalid_option", why, f"/{next(iter(keys))}/{RESERVED}/idempotency_key")
    brought = set(own.values())
    marks = await context.beside(
        lambda _: [mark_of(task, index in brought) for index, task in _wanted(tasks, keys)], b""
    )
    async with (
        as_problems(context),
        context.bulk_lanes.turn(tenant, key),
        context.pool.acquire() as connection,
        connection.transaction(),
    ):
        calls = Calls(connection, context.database.schema)
        if key is not None:
            made, replayed = await _whole(calls, tenant, tasks, key, of_all(marks), write)
        else:
            made, replayed = await _some(calls, tenant, tasks, keys, dict(zip(keys, marks, strict=True)), write)
    parts = (b'{"task_id":"%b","status":"%b"}' % (task_id.encode(), status.encode()) for task_id, status in made)
    return b"[" + b",".join(parts) + b"]\n", replayed


def _wanted(tasks: list[NewTask], keys: dict[int, str]) -> Iterable[tuple[int, NewTask]]:
    return ((index, tasks[index]) for index in keys) if keys else enumerate(tasks)


async def _whole(
    calls: Calls, tenant: str, tasks: list[NewTask], key: str, mark: str, write: Write
) -> tuple[list[tuple[str, str]], bool]:
    ids = [task.task_id for task in tasks]
    found = (await calls.remember([key] * len(ids), [mark] * len(ids), ids, tenant=tenant))[key]
    if found.outcome == "mismatch":
        raise mismatch(["header:Idempotency-Key"])
    if found.outcome == "replayed":
        return list(zip(found.task_ids, found.statuses, strict=True)), True
    await write(calls, tasks)
    return [(each, "pending") for each in ids], False


async def _some(
    calls: Calls,
    tenant: str,
    tasks: list[NewTask],
    keys: dict[int, str],
    marks: dict[int, str],
    write: Write,
) -> tuple[list[tuple[str, str]], bool]:
    made = [(task.task_id, "pending") for task in tasks]
    first: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for index, key in keys.items():
        if first.setdefault(key, index) != index:
            repeats[index] = first[key]
    wrong = [index for index, before in repeats.items() if marks[index] != marks[before]]
    replayed = False
    singles = sorted(first)  # keys in one order: two bodies that share keys must not wait in a circle
    for start in range(0, len(singles), KEYS_AT_ONCE):
        some = singles[start : start + KEYS_AT_ONCE]
        at = [first[key] for key in some]
        found = await calls.remember(some, [marks[i] for i in at], [tasks[i].task_id for i in at], tenant=tenant)
        for key, index in zip(some, at, strict=True):
            kept = found[key]
            if kept.outcome == "mismatch":
                wrong.append(index)
            elif kept.outcome == "replayed":
                made[index] = (kept.task_ids[0], kept.statuses[0])
                repeats[index] = index
                replayed = True
    if wrong:
        raise mismatch([f"/{index}/{RESERVED}/idempotency_key" for index in sorted(wrong)[:MAX_TOLD]])
    await write(calls, [task for index, task in enumerate(tasks) if index not in repeats])
    for index, before in repeats.items():
        made[index] = made[before]
    return made, replayed
