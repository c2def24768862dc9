"""Idempotency keys: the same key and submission answer with the same task, another submission is refused.

A key comes as the header `Idempotency-Key` for the whole body (draft-ietf-httpapi-idempotency-key-header; quotes
around it are taken off) or as the option `idempotency_key` of one task. It is its tenant's own, and is held as long
as the task's row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import msgspec
from starlette.types import Scope

from taskgate.api.context import Context
from taskgate.api.options import CHECKS, RESERVED
from taskgate.api.problems import Header, Problem, invalid, unavailable
from taskgate.api.rows import exists, given_up, refused
from taskgate.fingerprint import fingerprint
from taskgate.protocol.calls import NewTask
from taskgate.protocol.connect import DATABASE_ERRORS, ROW_ERRORS

HEADER = b"idempotency-key"

REPLAYED: Header = (b"idempotent-replayed", b"true")
"""Of an answer that names tasks which were there before."""

_decode = msgspec.json.Decoder().decode


def header_key(scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    """The key of the whole body. Raises Problem for one that is none, or two."""
    given = headers.get(HEADER)
    if given is None:
        return None
    if sum(name == HEADER for name, _ in scope["headers"]) > 1:
        why = "stands there twice: give one"
        raise Problem(422, "invalid_header", f"Idempotency-Key {why}.", errors=[("header:Idempotency-Key", why)])
    try:
        key = given.decode("ascii")
    except UnicodeDecodeError:
        key = ""
    if len(key) > 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    wrong = CHECKS["idempotency_key"](key)
    if wrong is not None:
        raise Problem(
            422, "invalid_header", f"Idempotency-Key {wrong} of ASCII.", errors=[("header:Idempotency-Key", wrong)]
        )
    return key


def one_key(header: str | None, option: str | None, place: str = "") -> str | None:
    """The key of a single task. Raises Problem when header and option disagree."""
    if header is not None and option is not None and header != option:
        why = "differs from the header Idempotency-Key: give one of them"
        raise invalid("invalid_option", why, f"{place}/{RESERVED}/idempotency_key")
    return header if header is not None else option


def mark_of(task: NewTask, own_id: bool) -> str:
    """The fingerprint of a submission."""
    options = _decode(task.options) if task.options else None
    return fingerprint(task.task_type, _decode(task.request), options, task.task_id if own_id else None)


def mismatch(places: Sequence[str]) -> Problem:
    why = "was used for another submission; a new submission needs a new key"
    return Problem(
        422, "idempotency_mismatch", f"This idempotency key {why}. Nothing was written.",
        errors=[(place, why) for place in places],
    )  # fmt: skip


@asynccontextmanager
async def as_problems(context: Context) -> AsyncIterator[None]:
    """What the database says of a submission under a key, told to its client. Raises Problem."""
    try:
        yield
    except DATABASE_ERRORS as error:
        context.state.lost(error)
        raise unavailable_with_key() from None
    except ROW_ERRORS as error:
        raise refused(error) from None
    except asyncpg.PostgresError as error:
        raise await given_up(context, error, None) from None


async def write_once(context: Context, tenant: str, task: NewTask, own_id: bool, key: str) -> tuple[str, str]:
    """The task's id once it is committed, and its status if the key stood for it already. Raises Problem."""
    mark = mark_of(task, own_id)
    async with as_problems(context):
        try:
            task_id, outcome, status = await context.calls.enqueue_once(task, key, mark, tenant=tenant)
        except DATABASE_ERRORS:  # committed or not: once more makes it certain
            task_id, outcome, status = await context.calls.enqueue_once(task, key, mark, tenant=tenant)
    if outcome == "mismatch":
        raise mismatch([f"/{RESERVED}/idempotency_key"])
    if outcome == "exists":
        raise exists([(f"/{RESERVED}/task_id", task_id)])
    return task_id, (status or "not_found") if outcome == "replayed" else ""


def unavailable_with_key() -> Problem:
    return unavailable(
        "database_unavailable", "The database does not answer. Send it again with the same idempotency key."
    )
