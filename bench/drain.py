"""Drain: how many no-op tasks a second one worker process runs, with results kept, fencing and the exact limit on.

    python -m bench.drain --tasks 100000 --slots 400

Starts a PostgreSQL of its own (durable: fsync and synchronous_commit as PostgreSQL has them by default), enqueues,
starts one worker and reads the rate from the rows' own timestamps.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.local.process import ChildProcess
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import Database, connect
from taskgate.protocol.migrate import migrate
from taskgate.settings import Settings

SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min"}
ENQUEUE = """
WITH n AS (SELECT ARRAY[$1::integer] AS size)
SELECT count(*) FROM n CROSS JOIN LATERAL taskgate.enqueue(
    array_fill(NULL::text, size), array_fill('noop'::text, size), array_fill('{"n": 1}'::text, size))
"""
RATE = """
SELECT count(*) AS tasks, extract(epoch FROM max(finished_at) - min(started_at))::float8 AS seconds,
       count(*) FILTER (WHERE status <> 'completed' OR attempts <> 1) AS wrong
FROM tasks WHERE task_type = 'noop'
"""


async def drain(
    dsn: str, tasks: int, slots: int, limit: int, deadline: float = 600.0, worker_command: str = ""
) -> tuple[float, float]:
    """Enqueue, run one worker until the table is drained.

    Answers tasks a second, and CPU seconds of the worker a task (its start-up included). Raises RuntimeError if a
    task went wrong.
    """
    database = Database(dsn)
    connection = await connect(database, "bench drain")
    try:
        calls = Calls(connection)
        await calls.set_limit(limit)
        await connection.execute("TRUNCATE tasks CASCADE")
        for start in range(0, tasks, 10_000):
            await connection.fetchval(ENQUEUE, min(10_000, tasks - start))
        await connection.execute("VACUUM ANALYZE tasks")
        await connection.execute("CHECKPOINT")
        environment = os.environ | {"DATABASE_URL": dsn, "TASKGATE_SLOTS": str(slots), "TASKGATE_LOG_FORMAT": "json"}
        command = shlex.split(worker_command) or [
            *(sys.executable, "-m", "taskgate.worker", "--app", "bench.noop:handlers", "--types", "noop")
        ]
        cpu = _cpu_of_children()
        worker = ChildProcess(command, env=environment, output=sys.stderr.fileno())
        try:
            await _drained(connection, deadline)
        finally:
            worker.stop(20.0)
        row = await connection.fetchrow(RATE)
        assert row is not None
        if row["wrong"] or row["tasks"] != tasks:
            raise RuntimeError(f"{row['wrong']} of {row['tasks']} tasks did not complete at their first attempt")
        return tasks / float(row["seconds"]), (_cpu_of_children() - cpu) / tasks
    finally:
        await connection.close()


def _cpu_of_children() -> float:
    """CPU seconds of child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _drained(connection: asyncpg.Connection[asyncpg.Record], deadline: float) -> None:
    until = time.monotonic() + deadline
    while await connection.fetchval("SELECT EXISTS (SELECT FROM tasks WHERE status IN ('pending', 'running'))"):
        if time.monotonic() > until:
            raise TimeoutError(f"not drained within {deadline:g} s")
        await asyncio.sleep(0.25)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.drain", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=400)
    parser.add_argument("--limit", type=int, default=None, help="the fleet's limit; as many as slots when not given")
    parser.add_argument(
        "--worker", default="", metavar="COMMAND", help="another worker of type noop, such as a built go/internal/noop"
    )
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    limit = given.limit if given.limit is not None else given.slots
    folder = Path(tempfile.mkdtemp(prefix="taskgate-bench-"))
    folder.chmod(0o711)
    try:
        with EmbeddedPostgres(folder, port=0, settings=SERVER) as server:
            migrate(server.dsn, configured=Settings(database_url=server.dsn).fleet_values())
            rates = [
                asyncio.run(drain(server.dsn, given.tasks, given.slots, limit, worker_command=given.worker))
                for _ in range(given.runs)
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for rate, cpu in rates:
        print(f"slots={given.slots} limit={limit} tasks={given.tasks} rate={rate:,.0f}/s", end=" ")
        print(f"worker_cpu={cpu * 1e6:.0f}us/task")
    print(f"median={sorted(rates)[len(rates) // 2][0]:,.0f}/s")


if __name__ == "__main__":
    main()
