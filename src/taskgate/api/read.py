"""GET /tasks/{task_id}: the hot read, on plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import asyncpg
from starlette.types import Receive, Scope, Send

from taskgate.api.auth import Caller
from taskgate.api.context import Context
from taskgate.api.http import JSON_HEADER, Disconnected, includes, query, respond, scope_headers, wait_seconds
from taskgate.api.lookup import LookupFailed, Unreadable
from taskgate.api.problems import Header, Problem, database_unavailable
from taskgate.api.views import encode, not_found_body, task_view
from taskgate.api.waiter import FINAL
from taskgate.protocol.connect import DATABASE_ERRORS

PARAMETERS = ("wait", "include")
RETRY_AFTER: dict[str, Header] = {"pending": (b"retry-after", b"2"), "running": (b"retry-after", b"1")}


async def get_task(context: Context, scope: Scope, receive: Receive, send: Send, task_id: str) -> int:
    """Answers with the task, at once or when it is final. Raises Problem."""
    caller = context.auth.caller(scope, scope_headers(scope))
    parameters = query(scope, PARAMETERS)
    included = includes(parameters, ("request", "history"))
    seconds = wait_seconds(parameters)
    if "\x00" in task_id or len(task_id) > 1000:
        row = None
    elif seconds:
        row = await while_connected(receive, held(context, caller, task_id, seconds))
    else:
        row = await lookup(context, caller, task_id)
    return await respond_task(context, caller, send, task_id, row, included)


async def lookup(context: Context, caller: Caller, task_id: str) -> Any:
    """The task's record, None if there is none for this caller. Raises Problem 503."""
    try:
        row = await context.lookup.get(task_id)
    except LookupFailed:
        raise database_unavailable() from None
    except Unreadable as error:
        raise unreadable(error) from None
    return row if row is not None and _may_see(caller, row) else None


async def held(context: Context, caller: Caller, task_id: str, seconds: float, *, is_there: bool = False) -> Any:
    """`lookup`, once the task is final or `seconds` are over. `is_there`: it was committed a moment ago."""
    try:
        row = await context.waiter.final(task_id, seconds, lambda row: _may_see(caller, row), is_there=is_there)
    except LookupFailed:
        raise database_unavailable() from None
    except Unreadable as error:
        raise unreadable(error) from None
    return row if row is not None and _may_see(caller, row) else None


def unreadable(error: Unreadable) -> Problem:
    detail = f"The row of this task holds what cannot be read ({error}): look at it with SQL. Other tasks are fine."
    return Problem(500, "task_unreadable", detail)


def _may_see(caller: Caller, row: Any) -> bool:
    return caller.sees is None or bool(row["tenant"] == caller.sees)


async def respond_task(
    context: Context,
    caller: Caller,
    send: Send,
    task_id: str,
    row: Any,
    included: set[str] = frozenset(),  # type: ignore[assignment]
) -> int:
    if row is None:
        await respond(send, context.not_found, not_found_body(task_id))
        return context.not_found
    history = None
    if included:
        try:
            if "request" in included:
                row = (await context.calls.get([task_id], tenant=caller.sees, with_request=True)).get(task_id, row)
            if "history" in included:
                history = await context.calls.history(task_id)
        except (*DATABASE_ERRORS, asyncpg.PostgresError):
            raise database_unavailable() from None
    headers = [JSON_HEADER]
    if row["status"] not in FINAL:
        headers.append(RETRY_AFTER[row["status"]])
    body = encode(task_view(row, with_request="request" in included, history=history))
    await respond(send, 200, body, headers)
    return 200


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`, stopped with Disconnected when the client goes away before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


__all__ = ["Problem", "get_task", "held", "lookup", "respond_task", "while_connected"]
