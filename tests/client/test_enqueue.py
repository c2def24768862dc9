"""enqueue over every driver: inside the caller's own transaction, nothing kept after a rollback."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import taskgate
from taskgate.errors import IdempotencyMismatch, TaskExists
from taskgate.protocol.migrate import migrate

KINDS = [
    "asyncpg",
    "asyncpg pool",
    "psycopg",
    "psycopg async",
    "sqlalchemy connection",
    "sqlalchemy session",
    "sqlalchemy async connection",
    "sqlalchemy async session",
]


def alchemy(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def transaction(kind: str, dsn: str) -> AsyncIterator[Any]:
    """A connection of this kind in a transaction: committed at the end, rolled back on an error."""
    match kind:
        case "asyncpg":
            raw = await asyncpg.connect(dsn)
            try:
                async with raw.transaction():
                    yield raw
            finally:
                await raw.close()
        case "asyncpg pool":
            async with (
                asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
                pool.acquire() as one,
                one.transaction(),
            ):
                yield one
        case "psycopg":
            with psycopg.connect(dsn, row_factory=dict_row) as connection:
                yield connection
        case "psycopg async":
            async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as connection:
                yield connection
        case "sqlalchemy connection" | "sqlalchemy session":
            engine = sqlalchemy.create_engine(alchemy(dsn, "psycopg"))
            try:
                if kind.endswith("session"):
                    with Session(engine) as session, session.begin():
                        yield session
                else:
                    with engine.begin() as connection:
                        yield connection
            finally:
                engine.dispose()
        case _:
            async_engine = create_async_engine(alchemy(dsn, "asyncpg"))
            try:
                if kind.endswith("session"):
                    async with AsyncSession(async_engine) as async_session, async_session.begin():
                        yield async_session
                else:
                    async with async_engine.begin() as connection:
                        yield connection
            finally:
                await async_engine.dispose()


async def enqueue(connection: Any, *args: Any, **options: Any) -> str:
    outcome: str | Awaitable[str] = taskgate.enqueue(connection, *args, **options)
    return await outcome if inspect.isawaitable(outcome) else outcome


def rows(dsn: str) -> list[Any]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM tasks ORDER BY seq").fetchall()


@pytest.mark.parametrize("kind", KINDS)
async def test_committed_with_the_callers_transaction(database: str, kind: str) -> None:
    request = {"prompt": "hé 漢", "n": 1.5}
    async with transaction(kind, database) as connection:
        task_id = await enqueue(connection, "llm", request, priority=9, metadata={"order": 7}, tenant="acme")
        assert rows(database) == []  # not before the commit
    (row,) = rows(database)
    assert (row["task_id"], row["status"], row["task_type"]) == (task_id, "pending", "llm")
    assert (row["priority"], row["metadata"], row["tenant"]) == (9, {"order": 7}, "acme")
    assert row["request"] == request


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_left_of_a_rollback(database: str, kind: str) -> None:
    async def fails_after_enqueuing() -> None:
        async with transaction(kind, database) as connection:
            await enqueue(connection, "llm", {"prompt": "x"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails_after_enqueuing()
    assert rows(database) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_taken_id_is_told_and_the_transaction_goes_on(database: str, kind: str) -> None:
    async with transaction(kind, database) as connection:
        assert await enqueue(connection, "llm", {"prompt": "first"}, task_id="order-7") == "order-7"
        with pytest.raises(TaskExists) as caught:
            await enqueue(connection, "llm", {"prompt": "second"}, task_id="order-7")
        assert caught.value.task_id == "order-7"
        await enqueue(connection, "llm", {"prompt": "third"}, task_id="order-8")
    assert [(row["task_id"], row["request"]["prompt"]) for row in rows(database)] == [
        ("order-7", "first"),
        ("order-8", "third"),
    ]


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "sqlalchemy session"])
async def test_key_order_is_kept_where_jsonb_would_lose_it(database: str, kind: str) -> None:
    schema = {"type": "object", "properties": {"reason": {}, "answer": {}}}
    async with transaction(kind, database) as connection:
        await enqueue(connection, "llm", {"zz": schema, "b": 1})
        await enqueue(connection, "llm", {"b": 1, "zz": 2})
    with psycopg.connect(database) as connection:
        raw = [row[0] for row in connection.execute("SELECT request_raw::text FROM tasks ORDER BY seq")]
    assert raw == [json.dumps({"zz": schema, "b": 1}, separators=(",", ":")), None]


async def test_options_reach_the_row(database: str) -> None:
    with psycopg.connect(database) as connection:
        taskgate.enqueue(
            connection,
            "llm",
            {"prompt": "x"},
            delay_seconds=60,
            start_within_seconds=30,
            timeout_seconds=5,
            max_attempts=7,
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
    (row,) = rows(database)
    assert (row["timeout_seconds"], row["max_attempts"]) == (5, 7)
    assert (row["start_before"] - row["run_at"]).total_seconds() == 30
    assert row["run_at"] > row["created_at"]
    assert row["traceparent"].startswith("00-0af7")


def test_another_schema(empty_database: str) -> None:
    migrate(empty_database, schema="acme")
    with psycopg.connect(empty_database) as connection:
        task_id = taskgate.enqueue(connection, "llm", {"prompt": "x"}, schema="acme")
        assert connection.execute("SELECT task_id FROM acme.tasks").fetchone() == (task_id,)
        with pytest.raises(ValueError, match="no schema name"):
            taskgate.enqueue(connection, "llm", {"prompt": "x"}, schema='x"; DROP')


def test_wrong_calls_are_refused_before_the_database(database: str) -> None:
    with psycopg.connect(database) as connection:
        refused: tuple[tuple[Any, str], ...] = (
            ({"prompt": "a\0b"}, "NUL"),
            ({"taskgate": {}}, "reserved"),
            ("text", "is an object"),
        )
        for request, complaint in refused:
            with pytest.raises(ValueError, match=complaint):
                taskgate.enqueue(connection, "llm", request)
        with pytest.raises(ValueError, match="no task type"):
            taskgate.enqueue(connection, "No Type", {})
    with pytest.raises(TypeError, match="asyncpg or psycopg 3"):
        taskgate.enqueue(object(), "llm", {})  # type: ignore[call-overload]


async def test_a_pool_is_no_transaction(database: str) -> None:
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
        with pytest.raises(TypeError, match="one acquired connection"):
            taskgate.enqueue(pool, "llm", {})  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_idempotency_key(kind: str, database: str) -> None:
    async def put(connection: Any, prompt: str) -> str:
        return await enqueue(connection, "llm", {"prompt": prompt}, priority=9, idempotency_key="k")

    async with transaction(kind, database) as connection:
        first = await put(connection, "x")
    async with transaction(kind, database) as connection:
        assert await put(connection, "x") == first
        with pytest.raises(IdempotencyMismatch):
            await put(connection, "y")
