"""Fixtures of the tests that run worker processes (imported by tests/worker and tests/fault)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.processes import Table, WorkerProcess


@pytest.fixture
async def table(database: str) -> AsyncIterator[Table]:
    opened = await Table.open(database)
    yield opened
    opened.sql.terminate()


@pytest.fixture
def start_worker(database: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts a worker on the test's database: `start_worker("noop,sleep", TASKGATE_SLOTS="2")`."""
    started: list[WorkerProcess] = []

    def start(
        types: str, *, dsn: str = database, app: str | None = "tests.worker.app:handlers", **values: str
    ) -> WorkerProcess:
        started.append(WorkerProcess(dsn, types, app=app, **values))
        return started[-1]

    yield start
    for worker in started:
        worker.close()
