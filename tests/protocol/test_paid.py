"""Paid once, in SQL: intents, operations, and what recovery, failure and retry make of them."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from taskgate.protocol.calls import Calls, Failure, NewTask, Release
from taskgate.protocol.connect import Database, connect

ACCOUNT = '{"upstream": "", "api": "vertex", "project": "p"}'


@pytest.fixture
async def db(database: str) -> Any:
    connection = await connect(Database(database), "test")
    yield connection
    await connection.close()


@pytest.fixture
def calls(db: asyncpg.Connection[Any]) -> Calls:
    return Calls(db)


async def start(calls: Calls, task_id: str = "t", *, max_attempts: int = 3, enqueue: bool = True) -> int:
    """A running task's token."""
    if enqueue:
        options = json.dumps({"max_attempts": max_attempts})
        assert await calls.enqueue([NewTask(task_id, "veo", '{"prompt": "p"}', options=options)]) == ["done"]
    answer = await calls.claim("w", 1, [], 60, ["veo"])
    assert [task.task_id for task in answer.tasks] == [task_id]
    return answer.tasks[0].token


async def lose(db: asyncpg.Connection[Any], calls: Calls, task_id: str = "t") -> Any:
    """The worker is gone, and its lease over; answers the row after recovery."""
    await db.execute("UPDATE taskgate.server_epoch SET seen_at = '-infinity'")
    await db.execute(
        "UPDATE tasks SET locked_until = clock_timestamp() - interval '1 hour', "
        "updated_at = clock_timestamp() - interval '2 hours' WHERE task_id = $1",
        task_id,
    )
    assert await calls.recover() == 1
    return await row(db, task_id)


async def row(db: asyncpg.Connection[Any], task_id: str = "t") -> Any:
    return await db.fetchrow("SELECT * FROM tasks WHERE task_id = $1", task_id)


async def told(calls: Calls, task_id: str = "t") -> list[tuple[str, str | None, str | None, bool]]:
    return [
        (each["outcome"], each["error_code"], each["operation"], each["submit_intent_at"] is not None)
        for each in await calls.history(task_id)
    ]


async def test_lost_in_the_send_ends_ambiguous(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    assert await calls.intend("t", token, ACCOUNT, retry=False) == "done"
    lost = await lose(db, calls)
    assert (lost["status"], lost["error"], lost["error_code"]) == ("failed", "submit_ambiguous", "submit_ambiguous")
    assert await told(calls) == [("lost", "submit_ambiguous", None, True)]
    (attempt,) = await calls.history("t")
    assert json.loads(attempt["account"])["project"] == "p"


async def test_lost_in_the_send_is_retried_where_that_was_asked_for(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    assert await calls.intend("t", token, ACCOUNT, retry=True) == "done"
    lost = await lose(db, calls)
    assert (lost["status"], lost["attempts"]) == ("pending", 1)
    assert await told(calls) == [("lost", "worker_timeout", None, True)]


async def test_lost_before_the_send_is_an_attempt_like_any_other(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    assert await calls.withdraw("t", token) == "done"
    assert (await lose(db, calls))["status"] == "pending"
    assert await told(calls) == [("lost", "worker_timeout", None, False)]


async def test_losing_who_follows_an_operation_costs_no_attempt(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls, max_attempts=1)
    await calls.intend("t", token, ACCOUNT, retry=False)
    assert await calls.save_operation("t", token, '{"name": "op"}') == "done"
    lost = await lose(db, calls)
    assert (lost["status"], lost["attempts"]) == ("pending", 0)
    await start(calls, enqueue=False)
    again = await lose(db, calls)  # the operation stands on the first attempt; the second followed it
    assert (again["status"], again["attempts"]) == ("pending", 0)


async def test_an_operation_that_is_over_or_very_old_keeps_nobody_alive(
    db: asyncpg.Connection[Any], calls: Calls
) -> None:
    token = await start(calls, max_attempts=1)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, '{"name": "op", "closed": "failed"}')
    lost = await lose(db, calls)
    assert (lost["status"], lost["error"]) == ("failed", "worker timeout")
    token = await start(calls, "old", max_attempts=1)
    await calls.intend("old", token, ACCOUNT, retry=False)
    await calls.save_operation("old", token, '{"name": "op"}')
    await db.execute("UPDATE taskgate.task_attempts SET submit_intent_at = submit_intent_at - interval '2 days'")
    assert (await lose(db, calls, "old"))["status"] == "failed"


async def test_stopped_in_the_send_is_not_tried_again(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.fail([Failure("t", token, "the attempt took longer than 3600 s", "timeout", retry=True)])
    failed = await row(db)
    assert (failed["status"], failed["error"], failed["error_code"]) == (
        "failed",
        "submit_ambiguous",
        "submit_ambiguous",
    )


async def test_a_verdict_of_its_own_stands(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.fail([Failure("t", token, "no", "provider_refused")])
    assert (await row(db))["error"] == "no"


async def test_retry_by_hand_sends_again_or_resumes(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await lose(db, calls)
    assert await calls.retry("t") == "done"
    assert [operation for _, _, operation, _ in await told(calls)] == ['{"closed": "retried"}']
    assert await calls.cancel("t") == "cancelled"
    token = await start(calls, "open")
    await calls.intend("open", token, ACCOUNT, retry=False)
    await calls.save_operation("open", token, '{"name": "op"}')
    await calls.fail([Failure("open", token, "timeout", "timeout")])
    assert await calls.retry("open") == "done"
    assert [operation for _, _, operation, _ in await told(calls, "open")] == ['{"name": "op"}']


async def test_retry_by_hand_waits_anew_for_an_account_that_is_missing(
    db: asyncpg.Connection[Any], calls: Calls
) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, '{"name": "op"}')
    await calls.checkpoint("t", token, checkpoint='{"account_missing_since": 1.5, "kept": true}')
    await calls.fail([Failure("t", token, "no worker has it", "account_not_configured")])
    assert await calls.retry("t") == "done"
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.checkpoint is not None
    assert json.loads(task.checkpoint) == {"kept": True}
    await calls.checkpoint("t", task.token, checkpoint='["account_missing_since"]')
    await calls.fail([Failure("t", task.token, "no", "no")])
    assert await calls.retry("t") == "done"
    (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert task.checkpoint == '["account_missing_since"]', "a handler's own value is left alone"


async def test_a_handle_that_comes_too_late_is_kept_for_a_retry(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await lose(db, calls)
    assert await calls.save_operation("t", token, '{"name": "late"}') == "stale"
    assert await told(calls) == [("lost", "submit_ambiguous", '{"name": "late"}', True)]
    assert await calls.intend("t", token, ACCOUNT, retry=False) == "stale"
    assert await calls.withdraw("t", token) == "stale"
    await calls.retry("t")
    assert (await told(calls))[0][2] == '{"name": "late"}'


async def test_an_attempt_that_resumed_can_say_that_it_is_over(db: asyncpg.Connection[Any], calls: Calls) -> None:
    token = await start(calls)
    await calls.intend("t", token, ACCOUNT, retry=False)
    await calls.save_operation("t", token, '{"name": "op"}')
    await calls.release([Release("t", token, reason="shutdown")])
    second = await start(calls, enqueue=False)
    assert await calls.save_operation("t", second, '{"name": "op", "closed": "cancelled"}') == "done"
    assert [operation for _, _, operation, _ in await told(calls)] == [
        '{"name": "op"}',
        '{"name": "op", "closed": "cancelled"}',
    ]
