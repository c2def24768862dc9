"""A backlog of no-op tasks, and how fast it was drained by the rows' own timestamps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg

from taskgate.local.process import ChildProcess

ENQUEUE = """
WITH n AS (SELECT ARRAY[%s::integer] AS size)
SELECT count(*) FROM n CROSS JOIN LATERAL taskgate.enqueue(
    array_fill(NULL::text, size), array_fill('noop'::text, size), array_fill('{"n": 1}'::text, size))
"""
RATE = """
SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8,
       count(*) FILTER (WHERE status <> 'completed' OR attempts <> 1 OR result IS NULL)
FROM tasks WHERE task_type = 'noop'
"""
CHUNK = 10_000
Connection = psycopg.Connection[tuple[object, ...]]


def fill(connection: Connection, tasks: int, limit: int) -> None:
    """An empty table with that many pending tasks of type noop, in good order, and a limit."""
    connection.execute("SELECT taskgate.set_limit(%s)", [limit])
    connection.execute("TRUNCATE tasks CASCADE")
    for start in range(0, tasks, CHUNK):
        connection.execute(ENQUEUE, [min(CHUNK, tasks - start)])
    note_start(connection)
    connection.execute("VACUUM ANALYZE tasks")
    connection.execute("CHECKPOINT")


def note_start(connection: Connection) -> None:
    """The first claim or recovery after a start of the server makes the tokens jump: not during a measure."""
    connection.execute("SELECT taskgate.recover()")


def claimed(connection: Connection) -> int:
    """Tokens given out so far: a number that costs the database nothing to tell."""
    row = connection.execute("SELECT last_value FROM taskgate.claim_token_seq").fetchone()
    assert row is not None
    return int(str(row[0]))


def wait_until_drained(
    connection: Connection, children: Sequence[ChildProcess], tasks: int, before: int, seconds: float = 600.0
) -> None:
    """`before`: tokens given out before the first of `tasks` was claimed.

    Raises TimeoutError; RuntimeError when one of the processes that drain has ended.
    """
    deadline = time.monotonic() + seconds
    while claimed(connection) - before < tasks or _unfinished(connection):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not drained within {seconds:g} s")
        if any(child.poll() is not None for child in children):
            raise RuntimeError("it ended before everything was drained")
        time.sleep(0.1)


def _unfinished(connection: Connection) -> bool:
    return connection.execute("SELECT FROM tasks WHERE status IN ('pending', 'running') LIMIT 1").fetchone() is not None


def drain_rate(connection: Connection, tasks: int) -> float:
    """Tasks a second, first start to last end. Raises RuntimeError if any went wrong."""
    row = connection.execute(RATE).fetchone()
    assert row is not None
    found, seconds, wrong = row
    if wrong or found != tasks:
        raise RuntimeError(f"{wrong} of {found} tasks did not complete at their first attempt; {tasks} were enqueued")
    return tasks / float(str(seconds))
