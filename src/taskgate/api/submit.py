"""POST /tasks and its kin: from bytes to a committed row, on plain ASGI."""

from __future__ import annotations

import re

import asyncpg
from starlette.types import Receive, Scope, Send

from taskgate.api.auth import Caller
from taskgate.api.bodies import parse_object
from taskgate.api.bulk import submit_many
from taskgate.api.coalescer import NotNow, NotWritten, Overloaded, Uncertain
from taskgate.api.context import Context
from taskgate.api.http import JSON_HEADER, invalid_parameter, query, read_body, respond, scope_headers, wait_seconds
from taskgate.api.idempotency import REPLAYED, header_key, one_key, write_once
from taskgate.api.options import RESERVED
from taskgate.api.problems import Problem, database_unavailable, unavailable
from taskgate.api.read import held, respond_task, while_connected
from taskgate.api.rows import IN_A_THREAD, exists, given_up, new_task, refused
from taskgate.api.types import TaskType
from taskgate.api.upstreams import UnknownUpstream
from taskgate.api.waiter import FINAL
from taskgate.protocol.calls import NewTask
from taskgate.protocol.connect import DATABASE_ERRORS, ROW_ERRORS

NDJSON = frozenset({b"application/x-ndjson", b"application/ndjson", b"application/jsonl"})
FORM = b"application/x-www-form-urlencoded"  # what `curl -d` says of any body
PARAMETERS = ("wait",)

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


async def submit(context: Context, scope: Scope, receive: Receive, send: Send, type_name: str) -> int:
    """Answers 202 (or, waited for, the task) once the row is committed. Raises Problem."""
    headers = scope_headers(scope)
    caller = context.auth.caller(scope, headers)
    media_type = check_headers(headers)
    parameters = query(scope, PARAMETERS) if scope.get("query_string") else {}
    seconds = wait_seconds(parameters, headers)
    task_type = context.types.cached(type_name) or await context.types.get(type_name)
    if context.schema_trouble is not None:
        raise unavailable("schema_mismatch", context.schema_trouble)
    await context.types.routing.prepare()
    raw = await read_body(receive, headers, context.settings.max_body_bytes)
    fixed = _fixed(caller, headers)
    many = media_type in NDJSON
    first = (raw[:64].lstrip(b" \t\r\n") or raw.lstrip(b" \t\r\n"))[:1]
    if media_type == FORM and first not in (b"{", b"[", b""):
        raise unsupported(FORM)
    if many or first == b"[":
        if "wait" in parameters:
            raise invalid_parameter("wait", "one can wait for a single task only; wait for each with GET")
        whole = header_key(scope, headers)
        body, repeated = await submit_many(context, caller.tenant, task_type, raw, fixed, lines=many, key=whole)
        await respond(send, context.accepted, body, [JSON_HEADER, *([REPLAYED] if repeated else [])])
        return context.accepted
    try:
        task, own_id, key = await _new_task(context, task_type, raw, fixed)
    except UnknownUpstream:
        await context.types.routing.refresh()
        task, own_id, key = await _new_task(context, task_type, raw, fixed)
    key = one_key(header_key(scope, headers), key)
    if key is None:
        await _write(context, caller.tenant, task, own_id)
        task_id, replayed = task.task_id, ""
    else:
        async with context.named_lanes.turn(caller.tenant, f"key {key}"):
            task_id, replayed = await write_once(context, caller.tenant, task, own_id, key)
    if seconds:
        try:
            row = await while_connected(receive, held(context, caller, task_id, seconds, is_there=True))
        except Problem:
            row = None  # the task is committed all the same
        if row is not None and row["status"] in FINAL:
            return await respond_task(context, caller, send, task_id, row)
    accepted = b'{"task_id":"%b","status":"%b"}\n' % (task_id.encode(), replayed.encode() or b"pending")
    headers_out = [JSON_HEADER, (b"location", b"/tasks/" + task_id.encode()), *([REPLAYED] if replayed else [])]
    await respond(send, context.accepted, accepted, headers_out)
    return context.accepted


async def _new_task(
    context: Context, task_type: TaskType, raw: bytes, fixed: dict[str, str]
) -> tuple[NewTask, bool, str | None]:
    def build(body: bytes) -> tuple[NewTask, bool, str | None]:
        return new_task(task_type, parse_object(body), fixed, context.types.routing)

    return build(raw) if len(raw) < IN_A_THREAD else await context.beside(build, raw)


def check_headers(headers: dict[bytes, bytes]) -> bytes:
    """The media type, empty if none was given. Raises Problem for what would have to be ignored."""
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Problem(415, "unsupported_media_type", "A compressed body is not taken: leave Content-Encoding out.")
    given = headers.get(b"content-type", b"")
    if given in (b"", b"application/json"):
        return given
    media_type, _, rest = given.lower().partition(b";")
    media_type = media_type.strip()
    charset = rest.partition(b"charset=")[2].strip(b' "')
    known = media_type in NDJSON or media_type in (b"application/json", FORM) or media_type.endswith(b"+json")
    if not known or charset not in (b"", b"utf-8", b"utf8", b"us-ascii"):
        raise unsupported(given)
    return media_type


def unsupported(given: bytes) -> Problem:
    name = given.decode("latin-1")[:100]
    return Problem(
        415,
        "unsupported_media_type",
        f"A body of type {name!r} cannot be read. Send JSON in UTF-8 as `Content-Type: application/json`, "
        "or one object a line as `application/x-ndjson`.",
    )


def _fixed(caller: Caller, headers: dict[bytes, bytes]) -> dict[str, str]:
    """What goes with every task of a request, as options of the protocol."""
    fixed: dict[str, str] = {}
    if caller.tenant:
        fixed["tenant"] = caller.tenant
    trace = headers.get(b"traceparent")
    if trace is not None and _TRACEPARENT.fullmatch(trace):
        fixed["traceparent"] = trace.decode()
    return fixed


async def _write(context: Context, tenant: str, task: NewTask, own_id: bool) -> None:
    if own_id:
        async with context.named_lanes.turn(tenant, f"id {task.task_id}"):
            return await _write_alone(context, task)
    try:
        await context.coalescer.submit(task)
    except Overloaded:
        raise unavailable(
            "overloaded", "More is coming in than the database takes. Send it again later.", seconds=1
        ) from None
    except NotWritten as error:
        raise refused(error) from None
    except NotNow as error:
        raise await given_up(context, error.__cause__ or error, task.task_id) from None
    except Uncertain:
        raise database_unavailable(task.task_id) from None


async def _write_alone(context: Context, task: NewTask) -> None:
    """An id that the caller brought may be held by somebody's open transaction: its neighbours must not wait for it."""
    try:
        outcome = (await context.calls.enqueue([task]))[0]
    except DATABASE_ERRORS as error:
        context.state.lost(error)
        raise database_unavailable(task.task_id) from None
    except ROW_ERRORS as error:
        raise refused(error) from None
    except asyncpg.PostgresError as error:
        raise await given_up(context, error, task.task_id) from None
    if outcome == "exists":
        raise exists([(f"/{RESERVED}/task_id", task.task_id)])
