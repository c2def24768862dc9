"""`enqueue(connection, …)`: a task written in the caller's own transaction: committed with it, or not at all."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, overload

from taskgate.errors import IdempotencyMismatch, TaskExists
from taskgate.fingerprint import fingerprint
from taskgate.jsonorder import keeps_order
from taskgate.protocol.producer import enqueue_once_statement, enqueue_statement
from taskgate.submission import OPTIONS_KEY, Options, SubmitOptions, json_text
from taskgate.task import check_task_type

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    from asyncpg.pool import PoolConnectionProxy
    from sqlalchemy import Connection as SyncConnection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    Blocking = psycopg.Connection[Any] | SyncConnection | Session
    Asynchronous = (
        asyncpg.Connection[Any]
        | PoolConnectionProxy[Any]
        | psycopg.AsyncConnection[Any]
        | AsyncConnection
        | AsyncSession
    )

SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}\Z")


@overload
def enqueue(
    connection: Blocking,
    task_type: str,
    request: Mapping[str, Any],
    *,
    tenant: str = "",
    traceparent: str | None = None,
    schema: str = "public",
    **options: Unpack[SubmitOptions],
) -> str: ...


@overload
def enqueue(
    connection: Asynchronous,
    task_type: str,
    request: Mapping[str, Any],
    *,
    tenant: str = "",
    traceparent: str | None = None,
    schema: str = "public",
    **options: Unpack[SubmitOptions],
) -> Awaitable[str]: ...


def enqueue(
    connection: Any,
    task_type: str,
    request: Mapping[str, Any],
    *,
    tenant: str = "",
    traceparent: str | None = None,
    schema: str = "public",
    **options: Unpack[SubmitOptions],
) -> str | Awaitable[str]:
    """Write one task over `connection` and answer its id; to be awaited for an asynchronous connection.

    `connection`: asyncpg, psycopg 3 (either kind), or a SQLAlchemy 2 Connection or Session (either kind, any
    PostgreSQL driver). Nothing is committed here. The options are those of taskgate.submission.Options;
    `tenant` is the name of the API key that may see the task; `schema` the schema of the tasks table.
    The request is not compared with the handler's schema: the worker does that.

    Raises ValueError for a request that cannot be kept (NUL, lone surrogates, NaN, no JSON, nesting over 100)
    or an option out of range; TaskExists when the `task_id` is taken (nothing is written then and the
    transaction goes on), IdempotencyMismatch likewise when the `idempotency_key` stands for another submission (the
    same submission answers the id of then); TypeError for a connection of another kind; errors of the database as
    the driver's.
    """
    values = _values(task_type, request, Options(**options), tenant, traceparent)
    if not SCHEMA_NAME.match(schema):
        raise ValueError(f"{schema!r} is no schema name: a-z, 0-9 and _ only")
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__}
    if kinds & {("asyncpg", "Connection"), ("asyncpg", "PoolConnectionProxy")}:
        return _over_asyncpg(connection, schema, values)
    if ("psycopg", "AsyncConnection") in kinds:
        return _over_async_psycopg(connection, schema, values)
    if ("psycopg", "Connection") in kinds:
        return _over_psycopg(connection, schema, values)
    if kinds & {
        ("sqlalchemy", "AsyncConnection"),
        ("sqlalchemy", "AsyncSession"),
        ("sqlalchemy", "async_scoped_session"),
    }:
        return _over_async_sqlalchemy(connection, schema, values)
    if kinds & {("sqlalchemy", "Connection"), ("sqlalchemy", "Session"), ("sqlalchemy", "scoped_session")}:
        return _task_id(connection.execute(_sqlalchemy_text(schema, values), values).one(), values)
    raise TypeError(
        f"enqueue cannot use a {type(connection).__module__}.{type(connection).__qualname__}: give it a connection of "
        "asyncpg or psycopg 3, or a Connection or Session of SQLAlchemy 2 (from a pool: one acquired connection)"
    )


def _values(
    task_type: str, request: Mapping[str, Any], options: Options, tenant: str, traceparent: str | None
) -> dict[str, Any]:
    check_task_type(task_type)
    if not isinstance(request, Mapping):
        raise ValueError(f"a request is an object, not {type(request).__name__}")
    if OPTIONS_KEY in request:
        raise ValueError(f"the key `{OPTIONS_KEY}` is reserved: give queue options as arguments of enqueue")
    given = options.given()
    task_id, key = given.pop("task_id", None), given.pop("idempotency_key", None)
    values = {
        "task_id": task_id,
        "task_type": task_type,
        "request": json_text(request),
        "keep_order": not keeps_order(request),
        "options": json_text(given) if given else None,
        "tenant": tenant,
        "traceparent": traceparent,
    }
    if key is not None:
        values |= {"idempotency_key": key, "fingerprint": fingerprint(task_type, request, given, task_id)}
    return values


def _task_id(row: Any, values: dict[str, Any]) -> str:
    if row[1] == "exists":
        raise TaskExists(f"there is a task {values['task_id']} already; nothing was written", task_id=values["task_id"])
    if row[1] == "mismatch":
        raise IdempotencyMismatch(
            f"the idempotency key {values['idempotency_key']} stands for another submission; nothing was written"
        )
    return str(row[0])


def _statement(schema: str, values: dict[str, Any], placeholder: Callable[[int, str], str]) -> str:
    """`placeholder` makes a driver's from a place, counted from 1, and a name."""
    names = {name: placeholder(place, name) for place, name in enumerate(values, 1)}
    return enqueue_once_statement(schema, names) if "idempotency_key" in values else enqueue_statement(schema, names)


async def _over_asyncpg(connection: Any, schema: str, values: dict[str, Any]) -> str:
    statement = _statement(schema, values, lambda place, _: f"${place}")
    return _task_id(await connection.fetchrow(statement, *values.values()), values)


def _psycopg_statement(schema: str, values: dict[str, Any]) -> str:
    return _statement(schema, values, lambda _, name: f"%({name})s")


def _over_psycopg(connection: Any, schema: str, values: dict[str, Any]) -> str:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:  # the connection's own may give anything
        return _task_id(cursor.execute(_psycopg_statement(schema, values), values).fetchone(), values)


async def _over_async_psycopg(connection: Any, schema: str, values: dict[str, Any]) -> str:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_psycopg_statement(schema, values), values)
        return _task_id(await cursor.fetchone(), values)


def _sqlalchemy_text(schema: str, values: dict[str, Any]) -> Any:
    from sqlalchemy import text

    return text(_statement(schema, values, lambda _, name: f":{name}"))


async def _over_async_sqlalchemy(connection: Any, schema: str, values: dict[str, Any]) -> str:
    return _task_id((await connection.execute(_sqlalchemy_text(schema, values), values)).one(), values)
