"""A cancel of a task whose operation at the provider is open, and which nobody follows just then."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from taskgate.protocol.calls import Calls, Failure, Release
from tests.protocol.test_paid import ACCOUNT, calls, db, lose, row, start, told

__all__ = ["calls", "db"]

MARKED = '{"name": "op", "cancel_requested": true}'


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
    assert await told(calls) == [("lost", "worker_timeout", MARKED, True)]
    second = await start(calls, enqueue=False)
    await calls.save_operation("t", second, '{"name": "op", "closed": "cancelled"}')
    ended = await lose(db, calls)
    assert (ended["status"], ended["error"]) == ("failed", "cancelled"), "it is cancelled there: nothing is left to do"


async def cancelled_in_the_middle(calls: Calls, *, max_attempts: int = 3) -> int:
    """The token of a task that was cancelled while a worker follows its operation."""
    token = await start(calls, max_attempts=max_attempts)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, '{"name": "op"}')
    assert await calls.cancel("t") == "cancelling"
    return token


CODES = ["released", "lease_lost", "account_not_here", "snoozed", "throttled", "of its own"]


@pytest.mark.parametrize("code", CODES)
async def test_given_back_while_it_is_cancelled(db: asyncpg.Connection[Any], calls: Calls, code: str) -> None:
    token = await cancelled_in_the_middle(calls)
    await calls.release([Release("t", token, 366 * 86400.0, code=code, reason="no")])
    given = await row(db)
    assert (given["status"], given["error"], given["attempts"]) == ("pending", None, 0)
    assert (given["run_at"] - given["updated_at"]).total_seconds() == 30, "the provider has to hear of it in time"
    assert await told(calls) == [("released", code, MARKED, True)]
    assert await calls.cancel("t") == "waiting"


@pytest.mark.parametrize("code", CODES)
async def test_given_back_after_all_patience(db: asyncpg.Connection[Any], calls: Calls, code: str) -> None:
    token = await cancelled_in_the_middle(calls)
    await db.execute("UPDATE tasks SET start_before = clock_timestamp() - interval '1 second'")
    await calls.release([Release("t", token, code=code, reason="no")])
    ended = await row(db)
    assert (ended["status"], ended["error"], ended["error_code"]) == ("failed", "cancelled", "cancelled")
    assert await told(calls) == [("cancelled", code, '{"name": "op"}', True)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("retry", [False, True])
async def test_a_failure_while_it_is_cancelled(
    db: asyncpg.Connection[Any], calls: Calls, retry: bool, late: bool
) -> None:
    """A time limit that ends with the cancellation: nobody has told the provider. Without `retry` it has been told."""
    token = await cancelled_in_the_middle(calls, max_attempts=1)
    if late:
        await db.execute("UPDATE tasks SET start_before = clock_timestamp() - interval '1 second'")
    await calls.fail([Failure("t", token, "it took longer", "timeout", retry=retry, delay=3600.0)])
    after = await row(db)
    if late or not retry:
        assert (after["status"], after["error"], after["error_code"]) == ("failed", "cancelled", "cancelled")
        assert await told(calls) == [("cancelled", "cancelled", '{"name": "op"}', True)]
        return
    assert (after["status"], after["attempts"]) == ("pending", 0)
    assert (after["run_at"] - after["updated_at"]).total_seconds() == 30
    assert await told(calls) == [("retried", "timeout", MARKED, True)]
    assert await calls.cancel("t") == "waiting"


RECOVERY = """
    UPDATE tasks
    SET status = CASE WHEN attempts >= 3 THEN 'failed' ELSE 'pending' END,
        error = CASE WHEN attempts >= 3 THEN 'worker timeout' ELSE error END,
        locked_until = NULL, updated_at = clock_timestamp()
    WHERE task_id IN (SELECT task_id FROM tasks
                      WHERE status = 'running' AND request IS NOT NULL AND locked_until < clock_timestamp()
                      FOR UPDATE SKIP LOCKED)
"""
"""As PROTOCOL.md has it for those who know only SQL."""


@pytest.mark.parametrize("attempts", [1, 3])
async def test_the_recovery_of_a_worker_that_knows_only_sql_leaves_it_to_the_next(
    db: asyncpg.Connection[Any], calls: Calls, attempts: int
) -> None:
    token = await cancelled_in_the_middle(calls)
    asked = await row(db)
    await db.execute(
        "UPDATE tasks SET locked_until = clock_timestamp() - interval '3 seconds', attempts = $1", attempts
    )
    await db.execute(RECOVERY)
    waits = await row(db)
    assert (waits["status"], waits["error"], waits["attempts"]) == ("pending", None, attempts - 1)
    assert (waits["locked_until"], waits["finished_at"], waits["worker_id"]) == (None, None, None)
    kept = ("cancel_requested_at", "start_before")
    assert [waits[each] for each in kept] == [asked[each] for each in kept]
    assert await told(calls) == [("lost", "worker_timeout", MARKED, True)]
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.token > token
    assert task.paid is not None
    assert json.loads(task.paid)["operation"] == json.loads(MARKED)
    assert await calls.renew("w", [("t", task.token)], 60) == {("t", task.token): "cancel"}


@pytest.mark.parametrize("why", ["late", "over", "its own"])
async def test_where_a_worker_that_knows_only_sql_ends_it(db: asyncpg.Connection[Any], calls: Calls, why: str) -> None:
    token = await cancelled_in_the_middle(calls)
    await db.execute("UPDATE tasks SET locked_until = clock_timestamp() - interval '3 seconds'")
    if why == "late":
        await db.execute("UPDATE tasks SET start_before = clock_timestamp() - interval '1 second'")
    elif why == "over":
        await calls.save_operation("t", token, '{"name": "op", "closed": "cancelled"}')
    if why == "its own":
        await db.execute("UPDATE tasks SET status = 'failed', error = 'it broke'")
    else:
        await db.execute(RECOVERY)
    ended = await row(db)
    assert (ended["status"], ended["error"], ended["error_code"]) == ("failed", "cancelled", "cancelled")


async def test_a_handle_that_comes_after_the_end_is_for_its_worker_to_cancel(
    db: asyncpg.Connection[Any], calls: Calls
) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.cancel("t")
    assert (await lose(db, calls))["error"] == "cancelled", "its worker froze in the send"
    assert await calls.save_operation("t", token, '{"name": "op"}') == "cancelled"
    assert (await told(calls))[0][2] == '{"name": "op"}'
    await calls.retry("t")
    assert await calls.save_operation("t", token, '{"name": "op"}') == "stale", "the next attempt follows it"


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
