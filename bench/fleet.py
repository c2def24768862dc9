"""Many worker processes at once, and tasks that tell when they were started."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from bench.client import Connection
from bench.processes import go_worker, process, python_worker, until

TYPE = "stamp"


@contextmanager
def idle_fleet(dsn: str, size: int, slots: int, program: Path | None = None) -> Iterator[None]:
    """Workers (Go ones when their program is given) that have all found nothing to do.

    Raises TimeoutError if they do not come up.
    """
    with ExitStack() as stack, psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(size):
            command = go_worker(program, dsn, slots, TYPE) if program else python_worker(dsn, slots, TYPE)
            stack.enter_context(process(*command))

        def up() -> bool:
            row = connection.execute("SELECT count(*) FROM taskgate.workers").fetchone()
            return row is not None and row[0] == size

        until(f"{size} workers", up, 180, 0.2)
        connection.execute("TRUNCATE tasks CASCADE")
        time.sleep(2)  # their first claims: nothing tells from outside that each has had its answer
        yield


def pause(gap: float) -> float:
    """Seconds, `gap` at the mean; random, so that no poll falls in step."""
    return gap * random.uniform(0.2, 1.8)


async def start_delays(url: str, dsn: str, tasks: int, gap: float) -> list[float]:
    """Milliseconds from just before the POST to the handler's own clock, tasks posted singly.

    `gap`: see `pause`.
    """
    sent: dict[str, int] = {}
    connection = await Connection.open(url)
    try:
        for _ in range(tasks):
            await asyncio.sleep(pause(gap))
            before = time.time_ns()
            status, answer = await connection.send("POST", f"/tasks/{TYPE}", {"n": 1})
            if status != 202:
                raise RuntimeError(f"{status}: {answer}")
            sent[answer["task_id"]] = before
        await asyncio.sleep(1)
    finally:
        connection.close()
    rows = await asyncio.to_thread(_results, dsn)
    if rows.keys() != sent.keys():
        raise RuntimeError(f"{len(rows)} of {len(sent)} tasks are completed")
    return [(rows[task_id] - before) / 1e6 for task_id, before in sent.items()]


def _results(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT task_id, (result ->> 'at')::bigint FROM tasks WHERE status = 'completed' AND task_type = %s", [TYPE]
        ).fetchall()
        connection.execute("DELETE FROM tasks WHERE status = 'completed'")
    return {str(task_id): int(at) for task_id, at in rows}


async def answer_delays(url: str, tasks: int, gap: float) -> list[float]:
    """Milliseconds from the handler's end to the answer of the POST that waits for it."""
    delays = []
    connection = await Connection.open(url)
    try:
        for _ in range(tasks):
            await asyncio.sleep(pause(gap))
            status, answer = await connection.send("POST", f"/tasks/{TYPE}?wait=30", {"n": 1})
            now = time.time_ns()
            if status != 200:
                raise RuntimeError(f"{status}: {answer}")
            delays.append((now - answer["result"]["at"]) / 1e6)
    finally:
        connection.close()
    return delays
