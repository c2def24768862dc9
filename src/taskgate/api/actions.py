"""The list of tasks, and what can be done to one: cancel and retry."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Literal

import asyncpg
from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, AwareDatetime

from taskgate.api.context import Context
from taskgate.api.dependencies import KNOWN_PARAMETERS, TheCaller, TheContext, ask, json_response
from taskgate.api.describe import answers, problems, ref, responses
from taskgate.api.http import invalid_parameter
from taskgate.api.problems import Problem, unavailable
from taskgate.api.views import Page, Verdict, listed_task
from taskgate.protocol.calls import Calls

router = APIRouter()

LOCK_SECONDS = 1.0
"""So long an action waits for a row that somebody else's transaction holds."""

CURSOR_PREFIX = "c1_"  # without it some would read as words, such as NA


def _no_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("must not hold U+0000")
    return value


Text = Annotated[str, AfterValidator(_no_nul)]


def _plausible(value: datetime) -> datetime:
    if not 1970 <= value.year <= 2200:
        raise ValueError("must be between the years 1970 and 2200")
    return value


Time = Annotated[AwareDatetime, AfterValidator(_plausible)]


@router.get("/tasks/", response_class=Response, dependencies=[KNOWN_PARAMETERS], include_in_schema=False)
@router.get(
    "/tasks",
    summary="List tasks, newest first",
    response_class=Response,
    responses=responses({200: answers(ref("Page"), "A page")}),
    dependencies=[KNOWN_PARAMETERS],
)
async def list_tasks(
    context: TheContext,
    caller: TheCaller,
    status: Literal["pending", "running", "completed", "failed"] | None = None,
    task_type: Annotated[Text | None, Query(alias="type", max_length=100)] = None,
    same_type: Annotated[
        Text | None, Query(alias="task_type", description="Another name of `type`.", max_length=100)
    ] = None,
    created_after: Annotated[Time | None, Query(description="From this time on.")] = None,
    created_before: Annotated[Time | None, Query(description="Before this time.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.", max_length=100)] = None,
    include: Annotated[
        str | None, Query(description="`request`, `result` or both, with a comma.", pattern="^(request|result|,)*$")
    ] = None,
) -> Response:
    if None not in (task_type, same_type) and task_type != same_type:
        raise invalid_parameter("task_type", "is another name of type: give one of the two")
    included = set((include or "").split(",")) - {""}
    if not included <= {"request", "result"}:
        raise invalid_parameter("include", "know only request and result")
    rows = await ask(
        context,
        context.calls.page(
            tenant=caller.sees,
            status=status,
            task_type=same_type if task_type is None else task_type,
            created_after=created_after,
            created_before=created_before,
            below=_read_cursor(cursor),
            limit=limit + 1,
            with_bodies=bool(included),
        ),
    )
    more = len(rows) > limit
    rows = rows[:limit]
    return json_response(Page([listed_task(row, included) for row in rows], _cursor(rows[-1]["seq"]) if more else None))


def _cursor(seq: int) -> str:
    return CURSOR_PREFIX + base64.urlsafe_b64encode(str(seq).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    try:
        if not cursor.startswith(CURSOR_PREFIX):
            raise ValueError
        cursor = cursor.removeprefix(CURSOR_PREFIX)
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if not text.isdigit() or int(text) >= 2**63:
            raise ValueError
    except (ValueError, binascii.Error):
        raise invalid_parameter("cursor", "is not a next_cursor of this API") from None
    return int(text)


async def _act(context: Context, act: Callable[[Calls], Awaitable[str]]) -> str:
    """The outcome of a cancel or retry. Raises Problem 503 `busy` where that would take long."""
    async with context.action_lanes.turn():
        return await ask(context, _acted(context, act))


async def _acted(context: Context, act: Callable[[Calls], Awaitable[str]]) -> str:
    try:
        async with context.pool.acquire() as connection, connection.transaction():
            calls = Calls(connection, context.database.schema)
            await calls.wait_for_locks(LOCK_SECONDS)
            return await act(calls)
    except asyncpg.LockNotAvailableError:
        detail = "Somebody's open transaction holds the row of this task; nothing was changed. Try again."
        raise unavailable("busy", detail, seconds=1) from None


def _not_found(task_id: str) -> Problem:
    detail = "There is no such task."
    return Problem(404, "task_not_found", detail, task_id=task_id, task_status="not_found")


_VERDICT = answers(ref("Verdict"), "Done")


@router.post(
    "/tasks/{task_id:path}/cancel",
    summary="Cancel a task",
    description="It ends `failed` with the error `cancelled`. 202: it runs, and its worker is told to stop; or it "
    "waits (`pending`), its video is open at the provider, and the next worker cancels that first.",
    response_class=Response,
    status_code=200,
    responses=responses({200: _VERDICT, 202: answers(ref("Verdict"), "A worker is told to stop it")}, 404, 409),
    dependencies=[KNOWN_PARAMETERS],
)
async def cancel(context: TheContext, caller: TheCaller, task_id: str) -> Response:
    outcome = "not_found"
    if "\x00" not in task_id:
        outcome = await _act(context, lambda calls: calls.cancel(task_id, tenant=caller.sees))
    if outcome == "not_found":
        raise _not_found(task_id)
    if outcome == "finished":
        raise Problem(409, "already_finished", "The task is finished and cannot be cancelled.", task_id=task_id)
    if outcome == "cancelling":
        return json_response(Verdict(task_id, "running", outcome), 202)
    if outcome == "waiting":
        return json_response(Verdict(task_id, "pending", "cancelling"), 202)
    return json_response(Verdict(task_id, "failed", outcome))


@router.post(
    "/tasks/{task_id:path}/retry",
    summary="Put a failed task back into the queue",
    response_class=Response,
    status_code=202,
    responses={**responses({202: answers(ref("Verdict"), "It waits again")}, 404, 409), **problems(409)},
    dependencies=[KNOWN_PARAMETERS],
)
async def retry(context: TheContext, caller: TheCaller, task_id: str) -> Response:
    outcome = "not_found"
    if "\x00" not in task_id:
        outcome = await _act(context, lambda calls: calls.retry(task_id, tenant=caller.sees))
    if outcome == "not_found":
        raise _not_found(task_id)
    if outcome == "not_failed":
        raise Problem(409, "not_failed", "Only a failed task can be tried again.", task_id=task_id)
    return json_response(Verdict(task_id, "pending", "retried"), context.accepted)


async def _not_built(what: str) -> Response:
    raise Problem(501, "not_built", f"{what} are not built yet.")


@router.get("/tasks/{task_id}/events", include_in_schema=False)
async def events(_caller: TheCaller, task_id: str) -> Response:
    return await _not_built("Events")
