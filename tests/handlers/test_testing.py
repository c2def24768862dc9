"""`taskgate.testing`: handlers run without a database."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from taskgate import Handlers, PermanentError, Retry, Snooze, Task, Throttled
from taskgate import testing as taskgate_testing
from taskgate.testing import StillRunning, run, run_sync

handlers = Handlers()


class Words(BaseModel):
    text: str
    times: int = 1


@dataclass
class Count:
    words: int
    seen: list[str]


@handlers.handler("count")
async def count(task: Task[Words]) -> Count:
    return Count(len(task.request.text.split()) * task.request.times, [task.type, task.id])


def test_run_sync_validates_the_request_and_shows_the_result_as_json() -> None:
    outcome = run_sync(count, {"text": "a b c", "times": 2}, task_id="t1")
    assert outcome.status == "completed"
    assert outcome.result == {"words": 6, "seen": ["test", "t1"]}
    registered = handlers.get("count")
    assert registered
    assert run_sync(registered, {"text": "a"}).result["seen"][0] == "count"


async def test_a_request_that_does_not_fit() -> None:
    outcome = await run(count, {"times": "x"})
    assert (outcome.status, outcome.error_code) == ("failed", "invalid_request")
    assert [each["loc"] for each in outcome.error_info["errors"]] == [["text"], ["times"]]


async def test_checkpoints_and_progress() -> None:
    async def resume(task: Task[Any]) -> Any:
        start = task.checkpoint["done"] if task.checkpoint else 0
        for step in range(start, 3):
            await task.report_progress(step / 3)
            await task.save_checkpoint({"done": step + 1, "pair": (1, 2)})
            if step == 1 and task.attempt == 1:
                raise Retry("halfway", after=2, code="halfway", info={"step": step})
        return task.checkpoint["done"]

    first = await run(resume, {})
    assert (first.status, first.error, first.error_code, first.after) == ("retry", "halfway", "halfway", 2)
    assert first.error_info == {"step": 1}
    assert first.checkpoints == [{"done": 1, "pair": [1, 2]}, {"done": 2, "pair": [1, 2]}]
    second = await run(resume, {}, checkpoint=first.checkpoints[-1], attempt=2)
    assert (second.status, second.result) == ("completed", 3)
    assert second.progress == [pytest.approx(2 / 3)]


@pytest.mark.parametrize(
    ("error", "attempt", "status", "code", "after"),
    [
        (Retry("x"), 1, "retry", "handler_error", None),
        (Retry("x"), 3, "failed", "handler_error", None),
        (Snooze("x", after=5), 3, "snoozed", "snoozed", 5),
        (Throttled("x", after=6), 3, "throttled", "throttled", 6),
        (PermanentError("x", code="no"), 1, "failed", "no", None),
        (KeyError("x"), 1, "retry", "handler_error", None),
        (KeyError("x"), 3, "failed", "handler_error", None),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
async def test_errors(error: Exception, attempt: int, status: str, code: str, after: float | None, plain: bool) -> None:
    async def raising(task: Task[Any]) -> None:
        raise error

    def raising_plain(task: Task[Any]) -> None:
        raise error

    outcome = await run(raising_plain if plain else raising, {}, attempt=attempt)
    assert (outcome.status, outcome.error_code, outcome.after) == (status, code, after)
    assert outcome.exception is error


async def test_a_plain_function_runs_in_a_thread() -> None:
    def work(task: Task[Any]) -> str:
        task.report_progress_sync(0.5)
        task.save_checkpoint_sync([1])
        return threading.current_thread().name

    outcome = await run(work, {})
    assert outcome.result == "handler test"
    assert (outcome.progress, outcome.checkpoints) == ([0.5], [[1]])


async def test_timeout_cancels_an_async_handler() -> None:
    seen: list[Any] = []

    async def slow(task: Task[Any]) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            seen.append(task.cancel_reason)

    outcome = await run(slow, {}, timeout=0.05)
    assert (outcome.status, outcome.error_code, seen) == ("retry", "timeout", ["timeout"])


async def test_a_plain_function_sees_its_timeout() -> None:
    def slow(task: Task[Any]) -> None:
        deadline = time.monotonic() + 60
        while task.cancel_reason is None and time.monotonic() < deadline:
            time.sleep(0.005)

    outcome = await run(slow, {}, timeout=0.05)
    assert (outcome.status, outcome.error_code) == ("retry", "timeout")


async def test_a_handler_that_does_not_stop_is_an_error_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskgate_testing, "STOP_SECONDS", 0.1)
    release = asyncio.Event()

    async def stubborn(task: Task[Any]) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(StillRunning, match="went on for"):
        await run(stubborn, {}, timeout=0.05)
    release.set()


@pytest.mark.parametrize("result", [object(), float("nan"), {"a": {1, object()}}])
async def test_a_result_that_is_not_json(result: Any) -> None:
    async def odd(task: Task[Any]) -> Any:
        return result

    outcome = await run(odd, {})
    assert (outcome.status, outcome.error_code) == ("failed", "result_not_json")


async def test_cancelling_the_test_cancels_the_handler() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(task: Task[Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    attempt = asyncio.create_task(run(slow, {}))
    await started.wait()
    attempt.cancel()
    await asyncio.wait_for(stopped.wait(), 30)
