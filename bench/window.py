"""The rate of a worker in full drain, read from outside while it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.backlog import Connection, claimed, note_start
from bench.processes import process, until

WARM = 5_000


@contextmanager
def draining(connection: Connection, command: list[str], env: dict[str, str]) -> Iterator[None]:
    """A worker that has claimed its first thousands. Raises TimeoutError."""
    note_start(connection)
    before = claimed(connection)
    with process(command, env):
        until("the worker is at full speed", lambda: claimed(connection) - before > WARM)
        yield


def rate(connection: Connection, seconds: float) -> float:
    """Claims a second over the next `seconds`. Raises RuntimeError when the backlog ran out meanwhile."""
    before, begun = claimed(connection), time.monotonic()
    time.sleep(seconds)
    found = (claimed(connection) - before) / (time.monotonic() - begun)
    if connection.execute("SELECT FROM tasks WHERE status = 'pending' LIMIT 1").fetchone() is None:
        raise RuntimeError("the backlog ran out: there must be more pending tasks")
    return found
