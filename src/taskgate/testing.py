"""Run a handler on a request without a database, and see what it would do to the task.

    from taskgate.testing import run

    async def test_summarize() -> None:
        outcome = await run(summarize, {"text": "…"})
        assert outcome.status == "completed"
        assert outcome.result["summary"]

`run_sync` is the same for tests that are plain functions. The request is validated by the handler's own type, as
the worker does; the result, checkpoints and progress go through JSON, as they would through the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from taskgate.task import (
    Handler,
    Handlers,
    MediaRef,
    Paid,
    PermanentError,
    Retry,
    Snooze,
    Task,
    TaskError,
    Throttled,
    Upstream,
)

T = TypeVar("T")

Status = Literal["completed", "retry", "snoozed", "throttled", "failed"]

MAX_RESULT_BYTES = 10 * 1024**2  # TASKGATE_MAX_RESULT_BYTES, unless it is set

STOP_SECONDS = 5.0
"""A handler that was told to stop has so long to do it."""


@dataclass(slots=True)
class Outcome:
    """What the attempt did. `retry`, `snoozed` and `throttled` give the task back; the others end it."""

    status: Status
    result: Any = None
    """The result as it would be read from the API."""
    error: str | None = None
    error_code: str | None = None
    error_info: Any = None
    after: float | None = None
    """Seconds until the next attempt, None for the worker's own backoff."""
    exception: BaseException | None = field(default=None, repr=False)
    """What the handler raised, with its traceback."""
    checkpoints: list[Any] = field(default_factory=list)
    """Every value that was saved, in order."""
    progress: list[Any] = field(default_factory=list)
    """Every value that was reported, in order."""
    paid: list[tuple[str, Any]] = field(default_factory=list)
    """What was said of paid calls, in order: `intend` with the account, `operation` with the handle, `withdraw`."""
    media: dict[str, StoredMedia] = field(default_factory=dict)
    """What was stored, by name."""


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """A medium that the handler stored."""

    content: bytes
    mime: str


class MemoryUpload:
    """A taskgate.task.MediaUpload into `kept`."""

    def __init__(self, kept: dict[str, StoredMedia], task_id: str, name: str, mime: str) -> None:
        self._kept, self._task_id, self._name, self._mime = kept, task_id, name, mime
        self._content = bytearray()

    async def write(self, data: bytes) -> None:
        self._content += data

    async def finish(self) -> MediaRef:
        content = bytes(self._content)
        self._kept[self._name] = StoredMedia(content, self._mime)
        path = f"/tasks/{quote(self._task_id, safe='')}/media/{self._name}"
        digest = hashlib.sha256(content).hexdigest()
        return {"sha256": digest, "bytes": len(content), "mime": self._mime, "url": path}

    async def abort(self) -> None:
        self._content.clear()


class MemoryContext:
    """A TaskContext that keeps everything in lists."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task_id: str) -> None:
        self._loop, self._task_id = loop, task_id
        self.media: dict[str, StoredMedia] = {}
        self.checkpoints: list[Any] = []
        self.progress: list[Any] = []
        self.paid: list[tuple[str, Any]] = []
        self.reason: str | None = None

    async def save_checkpoint(self, value: Any) -> None:
        self.checkpoints.append(through_json(value))

    async def report_progress(self, value: Any) -> None:
        self.progress.append(through_json(value))

    async def open_media(self, name: str, mime: str) -> MemoryUpload:
        return MemoryUpload(self.media, self._task_id, name, mime)

    async def intend(self, account: Any, *, retry: bool) -> None:
        self.paid.append(("intend", through_json(account)))

    async def save_operation(self, operation: Any) -> None:
        self.paid.append(("operation", through_json(operation)))

    async def withdraw(self) -> None:
        self.paid.append(("withdraw", None))

    def run_blocking(self, coroutine: Awaitable[T]) -> T:
        async def wait() -> T:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    @property
    def cancel_reason(self) -> str | None:
        return self.reason


async def run(
    handler: Handler | Callable[..., Any],
    request: Any,
    *,
    checkpoint: Any = None,
    attempt: int = 1,
    max_attempts: int = 3,
    timeout: float | None = None,
    task_id: str = "test-task",
    tenant: str = "",
    metadata: dict[str, Any] | None = None,
    upstream: Upstream | None = None,
    paid: Paid | None = None,
) -> Outcome:
    """Run one attempt. `handler` is a Handler, or a function with or without the `@handler` decorator.

    `checkpoint` is what an earlier attempt saved; `timeout` is in seconds, by default the handler's own or 60.
    After it an async handler is cancelled, a plain function sees `task.cancel_reason`, and the attempt counts as
    failed with code `timeout`. Whatever the handler raises is in the outcome. Raises AssertionError for a handler
    that does not stop within five seconds of being told to.
    """
    if not isinstance(handler, Handler):
        handler = _as_handler(handler)
    context = MemoryContext(asyncio.get_running_loop(), task_id)
    seconds = timeout if timeout is not None else handler.timeout or 60.0
    task: Task[Any] = Task(
        id=task_id,
        type=handler.name,
        request=None,
        attempt=attempt,
        max_attempts=max_attempts,
        timeout=seconds,
        token=attempt,
        tenant=tenant,
        metadata=metadata,
        checkpoint=through_json(checkpoint),
        upstream=upstream,
        paid=paid,
        context=context,
    )
    try:
        task.request = handler.parse(through_json(request))
        outcome = Outcome("completed", _json_result(await _finish(handler, task, context, seconds)))
    except StillRunning:
        raise
    except Exception as error:
        outcome = _failed(error, last=attempt >= max_attempts)
    outcome.checkpoints, outcome.progress, outcome.media = context.checkpoints, context.progress, context.media
    outcome.paid = context.paid
    return outcome


def run_sync(handler: Handler | Callable[..., Any], request: Any, **options: Any) -> Outcome:
    """`run` for a test that is a plain function. Takes the same options."""
    return asyncio.run(run(handler, request, **options))


class StillRunning(AssertionError):
    """The handler goes on after it was told to stop; in a worker it would hold its slot."""


def through_json(value: Any) -> Any:
    """The value as the database would give it back. Raises TypeError or ValueError if it is no JSON."""
    return json.loads(json.dumps(value, allow_nan=False))


async def _finish(handler: Handler, task: Task[Any], context: MemoryContext, seconds: float) -> Any:
    running = _start(handler, task)
    try:
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if not done:
            context.reason = "timeout"
            if handler.is_async:
                running.cancel()
            done, _ = await asyncio.wait({running}, timeout=STOP_SECONDS)
            if not done:
                raise StillRunning(f"{handler.name} went on for {STOP_SECONDS:g} s after its timeout")
            if not running.cancelled():
                running.exception()  # what it raised on the way out counts no more
            raise Retry(f"the attempt took longer than {seconds:g} s", code="timeout")
    finally:
        running.cancel()
    if running.cancelled():
        raise Retry("the handler was cancelled from inside", code="handler_error")
    return running.result()


def _start(handler: Handler, task: Task[Any]) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    if handler.is_async:
        return loop.create_task(handler.function(task))
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(result)

    def call() -> None:
        result, problem = None, None
        try:
            result = handler.function(task)
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, problem)

    # a daemon, so that a function that never returns does not keep the test run from ending
    threading.Thread(target=call, name=f"handler {handler.name}", daemon=True).start()
    return future


def _as_handler(function: Callable[..., Any]) -> Handler:
    registry = Handlers()
    registry.handler("test")(function)
    found = registry.get("test")
    assert found is not None
    return found


def _json_result(result: Any) -> Any:
    """Raises PermanentError for what a worker could not write either."""
    from taskgate.worker.results import result_text

    return json.loads(result_text(result, MAX_RESULT_BYTES))


def _failed(error: Exception, *, last: bool) -> Outcome:
    after: float | None = None
    status: Status = "failed" if last else "retry"
    if isinstance(error, PermanentError):
        status = "failed"
    elif isinstance(error, Snooze):
        status = "throttled" if isinstance(error, Throttled) else "snoozed"
        after = error.after
    elif isinstance(error, Retry):
        after = error.after
    if isinstance(error, TaskError):
        return Outcome(status, None, error.message, error.code, error.info, after, error)
    return Outcome(status, None, f"{type(error).__name__}: {error}", TaskError.code, None, None, error)
