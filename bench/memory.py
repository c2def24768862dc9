"""Memory of the processes: API, Python worker and Go worker, idle and at work.

Resident memory (VmRSS) for Python, anonymous memory (RssAnon) for Go. "At work": 20 calls running for a worker, 50
connections posting without pause for the API. The Go worker's are those of `python -m bench.go_memory`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from bench import go_memory, load
from bench.processes import api, environment, forget_peak, memory, process, until
from bench.report import Report
from bench.server import bench_server, migrated, server_facts
from bench.submit import body
from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions

SLOTS = 20
SUBMIT = """
INSERT INTO tasks (task_id, status, task_type, request)
SELECT 'task-' || i, 'pending', 'llm', jsonb_build_object('prompt', 'Hello ' || i) FROM generate_series(1, %s) AS i
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--idle", type=float, default=5, help="seconds without work before an idle process is read")
    parser.add_argument("--calls", type=int, default=1000, help="of the Go worker before it is read")


def run(given: argparse.Namespace) -> Report:
    with bench_server() as server:
        dsn = migrated(server, "memory")
        report = Report("Memory", server_facts(dsn))
        served = [_api(dsn, given.idle) for _ in range(given.runs)]
        worked = [asyncio.run(_python_worker(dsn, given.idle)) for _ in range(given.runs)]
    report.add("API, idle", [each[0] for each in served], "MiB", at_most=80)
    report.add("API, at its highest with 50 clients", [each[1] for each in served], "MiB")
    report.add(f"Python worker, {SLOTS} slots, idle", [each[0] for each in worked], "MiB", at_most=50)
    report.add(f"Python worker, {SLOTS} calls running", [each[1] for each in worked], "MiB", at_most=110)
    for name, values in _go(given).items():
        what, _, unit = name.rpartition("_")
        bound = go_memory.LIMITS.get(name)
        report.add(f"Go worker, {what.replace('_', ' ')}", values, unit.replace("mib", "MiB"), at_most=bound)
    return report


def _api(dsn: str, idle: float) -> tuple[float, float]:
    with api(dsn) as (url, child):
        load.run(f"{url}/tasks", load.post(body()), 50, 1)
        time.sleep(idle)
        quiet = memory(child.pid)
        forget_peak(child.pid)
        load.run(f"{url}/tasks", load.post(body()), 50, 4)
        highest = memory(child.pid, "VmHWM")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE tasks CASCADE")
    return quiet, highest


async def _python_worker(dsn: str, idle: float) -> tuple[float, float]:
    async with FakeProvider(FakeProviderOptions(latency=3600)) as provider:
        env = environment(
            DATABASE_URL=dsn,
            TASKGATE_SLOTS=str(SLOTS),
            TASKGATE_GRACE_SECONDS="0",
            OPENAI_BASE_URL=f"{provider.url}/v1",
            OPENAI_API_KEY="none",
            TASKGATE_LLM_MODEL="none",
            NO_PROXY="*",
        )
        command = [sys.executable, "-m", "taskgate.worker", "--types", "llm"]
        with process(command, env) as child, psycopg.connect(dsn, autocommit=True) as connection:
            await asyncio.to_thread(until, "the worker", lambda: _workers(connection) == 1)
            await asyncio.sleep(idle)
            quiet = memory(child.pid)
            connection.execute(SUBMIT, [SLOTS])
            await asyncio.to_thread(until, "its calls", lambda: provider.journal.in_flight == SLOTS)
            await asyncio.sleep(1)
            busy = memory(child.pid)
            connection.execute("TRUNCATE tasks CASCADE")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM taskgate.workers")
    return quiet, busy


def _workers(connection: psycopg.Connection[tuple[object, ...]]) -> object:
    row = connection.execute("SELECT count(*) FROM taskgate.workers").fetchone()
    return row and row[0]


def _go(given: argparse.Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for _ in range(given.runs):
        folder = Path(tempfile.mkdtemp(prefix="taskgate-memory-", dir="/tmp"))
        folder.chmod(0o711)
        try:
            for name, value in go_memory.measure(folder, given.calls, given.idle).items():
                found.setdefault(name, []).append(value)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found
