"""A task's whole story from one GET, and from one SQL query."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from taskgate.protocol.calls import Calls, Failure
from tests.api.api_process import ApiProcess

USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
INFO = {"http_status": 500, "body": "no luck"}


async def test_who_when_which_attempt_what_answer_how_many_tokens(
    api: ApiProcess, calls: Calls, connection: asyncpg.Connection[Any]
) -> None:
    async with api.client() as client:
        body = {"prompt": "x", "model": "m-1", "taskgate": {"max_attempts": 2}}
        task_id = (await client.post("/tasks", json=body)).json()["task_id"]
        (first,) = (await calls.claim("w-1", 1, [], 60, None)).tasks
        failure = Failure(task_id, first.token, "HTTP 500", "provider_error", json.dumps(INFO), retry=True, delay=0)
        await calls.fail([failure])
        (second,) = (await calls.claim("w-2", 1, [], 60, None)).tasks
        result = {"text": "Hi", "usage": USAGE, "model": "m-1-2026", "finish_reason": "stop"}
        await calls.complete([(task_id, second.token, json.dumps(result))])
        one, two = (await client.get(f"/tasks/{task_id}?include=history")).json()["history"]
    assert (one["attempt"], one["outcome"], one["worker_id"], one["answer"]) == (1, "retried", "w-1", INFO)
    assert (two["attempt"], two["outcome"], two["worker_id"], two["usage"]) == (2, "completed", "w-2", USAGE)
    assert two["answer"] == {"model": "m-1-2026", "finish_reason": "stop"}
    assert two["model"] == "m-1"
    assert two["seconds"] >= 0

    story = await connection.fetch(
        "SELECT attempt, worker_id, started_at, seconds, outcome, answer, usage FROM task_history"
        " WHERE task_id = $1 ORDER BY token",
        task_id,
    )
    assert [(row["attempt"], row["worker_id"], row["outcome"]) for row in story] == [
        (1, "w-1", "retried"),
        (2, "w-2", "completed"),
    ]
    assert json.loads(story[1]["usage"]) == USAGE


async def test_an_attempt_that_left_a_checkpoint_is_told_to_its_end(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        task_id = (await client.post("/tasks", json={"prompt": "x"})).json()["task_id"]
        (task,) = (await calls.claim("w", 1, [], 60, None)).tasks
        await calls.checkpoint(task_id, task.token, checkpoint='{"seen": 1}')
        (running,) = (await client.get(f"/tasks/{task_id}?include=history")).json()["history"]
        await calls.complete([(task_id, task.token, '{"text": "Hi", "model": "m-2026"}')])
        seen = (await client.get(f"/tasks/{task_id}?include=history")).json()
    (ended,) = seen["history"]
    assert (running["outcome"], running["finished_at"], running["seconds"], running["model"]) == (
        "running", None, None, ""
    )  # fmt: skip
    assert (ended["outcome"], ended["finished_at"]) == ("completed", seen["finished_at"])
    assert ended["seconds"] >= 0
    assert ended["model"] == "m-2026", "of the answer, where the request named none"
