"""Each call of the HTTP interface as a flow (see exchange.py): path, parameters, and what comes of the answer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from taskgate.errors import FieldProblem, NotFound, ServerError, TaskExists, TaskgateError, WaitTimeout
from taskgate.exchange import Call, Flow, Pause, Reply, checked, exchange, problem_of, remaining
from taskgate.submission import OPTIONS_KEY, Body, Chunk
from taskgate.task import check_task_type
from taskgate.views import Page, Submitted, TaskView

LONGEST_WAIT = 30.0
"""Seconds one long poll asks for; the API allows 55, proxies between often less than 60."""
POLL_SECONDS = 1.0


def submit(body: Body, task_type: str) -> Flow[Submitted]:
    """POST one body. A body with a task id of its own or an idempotency key is repeated safely."""
    path, task_id = _submit_path(task_type), body.task_id
    repeatable = task_id is not None or body.has_key
    call = Call("POST", path, content=body.text.encode(), repeatable=repeatable, task_id=task_id)
    outcome = yield from exchange(call)
    if outcome.reply.status == 409 and outcome.doubtful and task_id is not None:
        yield from _ours(task_id, body.text, problem_of(outcome.reply))
        return Submitted(task_id)
    return _submitted(checked(outcome, 202, 200))


def submit_chunk(chunk: Chunk, task_type: str) -> Flow[list[Submitted]]:
    """POST a chunk as NDJSON; all of it or nothing. Pointers of errors count from the first body of all."""
    own = all(task_id is not None for task_id in chunk.task_ids)
    call = Call(
        "POST",
        _submit_path(task_type),
        content=chunk.content,
        content_type="application/x-ndjson",
        repeatable=own or chunk.keyed,
    )
    outcome = yield from exchange(call)
    if outcome.reply.status == 409 and outcome.doubtful and own:
        ids = [task_id for task_id in chunk.task_ids if task_id is not None]
        for task_id, line in ((ids[0], chunk.lines[0]), (ids[-1], chunk.lines[-1])):
            yield from _ours(task_id, line, problem_of(outcome.reply))
        return [Submitted(task_id) for task_id in ids]
    try:
        body = checked(outcome, 202, 200)
    except TaskgateError as error:
        error.errors = tuple(_shifted(each, chunk.first) for each in error.errors)
        raise
    if not isinstance(body, list) or len(body) != len(chunk.lines):
        raise ServerError("the API did not answer one entry for each task")
    return [_submitted(each) for each in body]


def get(task_id: str, wait: float, include: Sequence[str]) -> Flow[TaskView]:
    """GET one task, held for up to `wait` seconds. Raises NotFound."""
    params = {"include": ",".join(include)} if include else {}
    if wait > 0:
        params["wait"] = f"{wait:.3f}".rstrip("0").rstrip(".")
    outcome = yield from exchange(Call("GET", _task_path(task_id), params, wait=wait))
    return _view(outcome.reply, task_id)


def wait_final(task_id: str, timeout: float | None, include: Sequence[str]) -> Flow[TaskView]:
    """GET until the task is final. Raises WaitTimeout after `timeout` seconds, None waits for ever."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        hold = max(0.0, min(LONGEST_WAIT, remaining(deadline)))
        view = yield from get(task_id, hold, include)
        if view.is_final:
            return view
        left = remaining(deadline)
        if left <= 0:
            raise WaitTimeout(f"task {task_id} is {view.status} after {timeout:g} s", view)
        if time.monotonic() - begun < min(POLL_SECONDS, hold):  # the API did not hold the answer
            yield Pause(min(POLL_SECONDS, left))


def page(
    status: str | None,
    task_type: str | None,
    created_after: datetime | None,
    created_before: datetime | None,
    limit: int,
    cursor: str | None,
    include: Sequence[str],
) -> Flow[Page]:
    """GET one page of tasks, newest first."""
    params = {"limit": str(limit)}
    for name, moment in (("created_after", created_after), ("created_before", created_before)):
        if moment is not None:
            params[name] = (moment if moment.tzinfo else moment.astimezone()).isoformat()
    for name, value in (("status", status), ("type", task_type), ("cursor", cursor), ("include", ",".join(include))):
        if value:
            params[name] = value
    outcome = yield from exchange(Call("GET", "/tasks", params))
    body = checked(outcome, 200)
    return Page(tuple(TaskView.parse(each) for each in body["items"]), body.get("next_cursor"))


def cancel(task_id: str) -> Flow[str]:
    """POST cancel. `cancelled`, or `cancelling` while a worker is told. Raises NotFound, Conflict when finished."""
    outcome = yield from exchange(Call("POST", f"{_task_path(task_id)}/cancel"))
    checked(outcome, 200, 202)
    return "cancelling" if outcome.reply.status == 202 else "cancelled"


def retry(task_id: str) -> Flow[Submitted]:
    """POST retry. Raises NotFound, Conflict when the task has not failed."""
    outcome = yield from exchange(Call("POST", f"{_task_path(task_id)}/retry"))
    if outcome.reply.status == 409 and outcome.doubtful:  # our first try was carried out, most likely
        view = yield from get(task_id, 0, ())
        if view.status in ("pending", "running"):
            return Submitted(task_id, view.status)
    checked(outcome, 200, 202)
    return Submitted(task_id)


def read(path: str) -> Flow[Any]:
    """GET a JSON document of the service itself: /stats, /limits, /types, /workers."""
    outcome = yield from exchange(Call("GET", path))
    return checked(outcome, 200)


def _ours(task_id: str, text: str, taken: TaskgateError) -> Flow[None]:
    """Raises `taken` unless the task under this id has the request that we sent: an earlier try was carried out."""
    if not isinstance(taken, TaskExists):
        raise taken
    try:
        view = yield from get(task_id, 0, ("request",))
    except NotFound:
        raise taken from None
    sent = json.loads(text)
    sent.pop(OPTIONS_KEY, None)
    if view.request != sent:
        raise taken


def _view(reply: Reply, task_id: str) -> TaskView:
    if reply.status not in (200, 404):
        raise problem_of(reply)
    body = reply.json()
    if isinstance(body, dict) and body.get("status") == "not_found":
        raise NotFound(f"there is no task {task_id}", status=reply.status, task_id=task_id)
    if reply.status == 404:
        raise problem_of(reply)
    try:
        return TaskView.parse(body)
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(f"the API's answer is no task: {error!r}", status=reply.status) from error


def _submitted(body: Any) -> Submitted:
    try:
        return Submitted(str(body["task_id"]), str(body["status"]))
    except (KeyError, TypeError) as error:
        raise ServerError(f"the API's answer names no task: {error!r}") from error


def _shifted(problem: FieldProblem, first: int) -> FieldProblem:
    """A pointer that counts from the first body of all, not of the chunk."""
    head, slash, rest = problem.pointer[1:].partition("/")
    if not first or not problem.pointer.startswith("/") or not head.isdigit():
        return problem
    return replace(problem, pointer=f"/{int(head) + first}{slash}{rest}")


def _submit_path(task_type: str) -> str:
    check_task_type(task_type)
    return "/tasks" if task_type == "llm" else f"/tasks/{task_type}"


def _task_path(task_id: str) -> str:
    if not task_id or task_id in (".", ".."):
        raise ValueError("a task id is needed")
    return f"/tasks/{quote(task_id, safe='')}"
