"""A cancel of a task whose operation at the provider is open, and which nobody follows just then."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from taskgate.protocol.calls import Calls, Release
from tests.protocol.test_paid import ACCOUNT, calls, db, lose, row, start, told

__all__ = ["calls", "db"]


async def left_open(calls: Calls, operation: str = '{"name": "op"}') -> None:
    """A task whose operation nobody follows: its worker was stopped."""
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, operation)
    await calls.release([Release("t", token, code="released", reason="shutdown")])


async def test_a_cancel_that_nobody_hears_waits_for_the_next_worker(db: asyncpg.Connection[Any], calls: Calls) -> None:
    await left_open(calls)
    await db.execute("UPDATE tasks SET run_at = run_at + interval '1 hour'")
    assert await calls.cancel("t") == "waiting"
    asked = await row(db)
    assert (asked["status"], asked["error"], asked["finished_at"]) == ("pending", None, None)
    assert asked["cancel_requested_at"] is not None
    assert await calls.cancel("t") == "waiting"
    assert (await row(db))["start_before"] == asked["start_before"], "asking again makes it no longer"
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.paid is not None
    assert json.loads(task.paid)["operation"] == {"name": "op", "cancel_requested": True}
    assert await calls.renew("w", [("t", task.token)], 60) == {("t", task.token): "cancel"}
    await calls.complete([("t", task.token, '{"too": "late"}')])
    ended = await row(db)
    assert (ended["status"], ended["error"], ended["result"]) == ("failed", "cancelled", None)


async def test_a_cancelled_task_that_no_worker_takes_ends_all_the_same(
    db: asyncpg.Connection[Any], calls: Calls
) -> None:
    await left_open(calls)
    await calls.cancel("t")
    await calls.recover()
    assert (await row(db))["status"] == "pending"
    await db.execute("UPDATE tasks SET start_before = clock_timestamp() - interval '1 second'")
    assert (await calls.claim("w", 1, [], 60, ["veo"])).tasks == []
    await calls.recover()
    ended = await row(db)
    assert (ended["status"], ended["error"], ended["error_code"]) == ("failed", "cancelled", "cancelled")
    assert await calls.retry("t") == "done"
    again = await row(db)
    assert (again["cancel_requested_at"], again["start_before"]) == (None, None)
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.paid is not None
    assert json.loads(task.paid)["operation"] == {"name": "op"}, "a retry follows it"


async def test_put_back_by_hand_it_is_followed_as_well(db: asyncpg.Connection[Any], calls: Calls) -> None:
    await left_open(calls)
    await calls.cancel("t")
    await db.execute("UPDATE tasks SET start_before = clock_timestamp() - interval '1 second'")
    await calls.recover()
    await db.execute("UPDATE tasks SET status = 'pending' WHERE task_id = 't'")
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.paid is not None
    assert json.loads(task.paid)["operation"] == {"name": "op"}
    assert await calls.renew("w", [("t", task.token)], 60) == {("t", task.token): "done"}


async def test_a_worker_that_knows_only_sql_gives_no_result_to_a_cancelled_task(
    db: asyncpg.Connection[Any], calls: Calls
) -> None:
    await left_open(calls)
    await calls.cancel("t")
    await db.execute("UPDATE tasks SET status = 'running', locked_until = now() + interval '1 hour'")
    await db.execute("""UPDATE tasks SET status = 'completed', result = '{}', locked_until = NULL""")
    ended = await row(db)
    assert (ended["status"], ended["error"], ended["result"]) == ("failed", "cancelled", None)


async def test_a_worker_that_dies_over_a_cancel_leaves_it_to_the_next(
    db: asyncpg.Connection[Any], calls: Calls
) -> None:
    token = await start(calls, max_attempts=1)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, '{"name": "op"}')
    assert await calls.cancel("t") == "cancelling"
    lost = await lose(db, calls)
    assert (lost["status"], lost["attempts"]) == ("pending", 0)
    marked = '{"name": "op", "cancel_requested": true}'
    assert await told(calls) == [("lost", "worker_timeout", marked, True)]
    second = await start(calls, enqueue=False)
    await calls.save_operation("t", second, '{"name": "op", "closed": "cancelled"}')
    ended = await lose(db, calls)
    assert (ended["status"], ended["error"]) == ("failed", "cancelled"), "it is cancelled there: nothing is left to do"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("released", "pending"),
        ("lease_lost", "pending"),
        ("account_not_here", "pending"),
        ("snoozed", "failed"),
        ("throttled", "failed"),
    ],
)
async def test_given_back_while_it_is_cancelled(
    db: asyncpg.Connection[Any], calls: Calls, code: str, status: str
) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, '{"name": "op"}')
    await calls.cancel("t")
    await calls.release([Release("t", token, code=code, reason="no")])
    given = await row(db)
    assert given["status"] == status
    assert given["error"] == (None if status == "pending" else "cancelled")
    (attempt,) = await told(calls)
    assert attempt[0] == ("released" if status == "pending" else "cancelled")
    assert ("cancel_requested" in str(attempt[2])) == (status == "pending")


@pytest.mark.parametrize("operation", ['{"closed": "failed"}', None])
async def test_nothing_is_open_so_a_cancel_ends_it(
    db: asyncpg.Connection[Any], calls: Calls, operation: str | None
) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=True)
    if operation is not None:
        await calls.save_operation("t", token, operation)
    await calls.release([Release("t", token, code="released", reason="shutdown")])
    assert await calls.cancel("t") == "cancelled"
    assert (await row(db))["error"] == "cancelled"


async def test_a_handle_that_is_no_object_is_left_as_it_is(db: asyncpg.Connection[Any], calls: Calls) -> None:
    await left_open(calls, '"op"')
    assert await calls.cancel("t") == "waiting"
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.paid is not None
    assert json.loads(task.paid)["operation"] == "op"
    assert await calls.renew("w", [("t", task.token)], 60) == {("t", task.token): "cancel"}
