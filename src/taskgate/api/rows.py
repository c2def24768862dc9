"""From a checked body to the row that is written, and what it means when the database does not take it."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import uuid_utils

from taskgate.api.bodies import Body, raw_member, without_key
from taskgate.api.context import Context
from taskgate.api.options import RESERVED, parse_options
from taskgate.api.problems import Problem, invalid, unavailable
from taskgate.api.types import TaskType
from taskgate.api.upstreams import Routing
from taskgate.protocol.calls import NewTask

IN_A_THREAD = 256 * 1024
"""What has so many bytes or more is parsed beside the event loop."""

_encode = msgspec.json.Encoder().encode


def new_task(
    task_type: TaskType, body: Body, fixed: dict[str, str], routing: Routing
) -> tuple[NewTask, bool, str | None]:
    """The row of a request, whether the caller brought its id, and its idempotency key. Raises Problem."""
    request, text, own_id, key, values = body.value, body.text, None, None, fixed
    if RESERVED in request:
        options = parse_options(request.pop(RESERVED), raw_member(text, RESERVED))
        own_id, key = options.task_id, options.idempotency_key
        values = {**options.values, **fixed}
        text = without_key(text, RESERVED)
    errors = task_type.check(request)
    if errors:
        place, why = errors[0]
        detail = f"The request does not fit {task_type.name}: {f'{place} ' if place else ''}{why}"
        raise Problem(422, "invalid_request", detail, errors=errors)
    routing.check(task_type.name, request, values.get("upstream"))
    return (
        NewTask(
            own_id or str(uuid_utils.uuid7()),
            task_type.name,
            text,
            body.keep_order,
            _encode(values).decode() if values else None,
        ),
        own_id is not None,
        key,
    )


def exists(taken: list[tuple[str, str]]) -> Problem:
    errors = [(place, f"the task {task_id} exists already") for place, task_id in taken]
    return Problem(409, "task_exists", "A task of that id exists already; nothing was written.", errors=errors)


def refused(error: Exception) -> Problem:
    return invalid("refused_by_database", f"PostgreSQL cannot store this request: {error}")


async def given_up(context: Context, error: BaseException, task_id: str | None) -> Problem:
    """The database ended the statement: nothing was written."""
    members: dict[str, Any] = {} if task_id is None else {"task_id": task_id}
    if isinstance(error, asyncpg.UndefinedFunctionError | asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError):
        detail = (
            context.schema_trouble or "The database has no taskgate schema of this version: run `taskgate migrate`."
        )
        return unavailable("schema_mismatch", detail, **members)
    return unavailable("database_refused", f"The database gave up and wrote nothing: {error}. Try again.", **members)
