"""Fixtures of the tests that run worker processes (imported by tests/worker and tests/fault)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.processes import Table, WorkerProcess


@pytest.fixture
async def table(database: str) -> AsyncIterator[Table]:
    opened = await Table.open(database)
    yield opened
    opened.sql.terminate()


@contextmanager
def worker_starter(database: str, **always: Any) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers on the database, with what `always` says; ends them all."""
    started: list[WorkerProcess] = []

    def start(types: str, *, dsn: str = database, **values: Any) -> WorkerProcess:
        started.append(WorkerProcess(dsn, types, **{**always, **values}))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            worker.close()


@pytest.fixture
def start_worker(database: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts a worker on the test's database: `start_worker("noop,sleep", TASKGATE_SLOTS="2")`."""
    with worker_starter(database) as start:
        yield start
