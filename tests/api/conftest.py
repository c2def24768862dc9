"""The API as a process, and a worker's calls on the same database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import Database, connect
from tests.api.api_process import ApiProcess


@pytest.fixture
def api(database: str) -> Iterator[ApiProcess]:
    """An API without keys on a fresh database."""
    with ApiProcess(database) as process:
        yield process


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection to the same database, as our own programs open them."""
    connection = await connect(Database(database), "test")
    yield connection
    await connection.close()


@pytest.fixture
def calls(connection: asyncpg.Connection[Any]) -> Calls:
    return Calls(connection)


async def finish(calls: Calls, *, result: str = '{"text":"done"}', count: int = 1) -> list[str]:
    """Claims and completes tasks like a worker would; their ids."""
    done: list[str] = []
    while len(done) < count:
        answer = await calls.claim("test-worker", count, [], 60, None)
        assert answer.tasks, answer
        verdicts = await calls.complete([(task.task_id, task.token, result) for task in answer.tasks])
        assert set(verdicts.values()) == {"done"}
        done += [task.task_id for task in answer.tasks]
    return done


@pytest.fixture
def finish_tasks() -> Callable[..., Any]:
    return finish
