"""Submit to handler start on an idle fleet, and end of task to the answer of `?wait=`.

Tasks are posted singly with random pauses. A start is counted from before the POST is sent to the handler's own
first clock reading; an end from that reading (the handler returns at once) to the whole answer of the POST that
waits. The clock is the machine's. The last lines: the same while 2,000 other requests wait on the same API process.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from bench.client import Connection
from bench.fleet import TYPE, answer_delays, idle_fleet, start_delays
from bench.processes import api, build_go
from bench.report import Report, percentile
from bench.server import bench_server, migrated, server_facts
from bench.yardstick import yardsticks


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=300, help="per run")
    parser.add_argument("--gap", type=float, default=0.02, help="mean pause between two tasks, in seconds")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--who", default="Python,Go", help="Python, Go (default: both)")
    parser.add_argument("--workers", default="1,20", help="processes of one fleet, each of 20 slots (default 1,20)")
    parser.add_argument("--waiters", type=int, default=2000, help="requests held beside the last measure; 0: leave out")


def run(given: argparse.Namespace) -> Report:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))  # also for the API
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-bench-")))
        server = stack.enter_context(bench_server())
        dsn = migrated(server, "latency", limit=400)
        report = Report("Latency", server_facts(dsn))
        url, _ = stack.enter_context(api(dsn))
        for who in given.who.split(","):
            program = build_go(folder) if who == "Go" else None
            for size in map(int, given.workers.split(",")):
                name = f"{size} {who} worker{'s' if size > 1 else ''}"
                yardsticks(report, name, dsn, server.data_dir, given.gap)
                with idle_fleet(dsn, size, 20, program):
                    _start(report, name, given, lambda: start_delays(url, dsn, given.tasks, given.gap))
                    _end(report, name, given, lambda: answer_delays(url, given.tasks, given.gap))
                    if given.waiters and size == 1:
                        asyncio.run(_beside_waiters(report, name, given, url))
    return report


def _start(report: Report, name: str, given: argparse.Namespace, measure: Callable[[], Awaitable[list[float]]]) -> None:
    runs = [asyncio.run(_awaited(measure)) for _ in range(given.runs)]
    report.add(f"{name}: submit to start, p50", [percentile(run, 50) for run in runs], "ms", at_most=4)
    report.add(f"{name}: submit to start, p99", [percentile(run, 99) for run in runs], "ms", at_most=10)


def _end(report: Report, name: str, given: argparse.Namespace, measure: Callable[[], Awaitable[list[float]]]) -> None:
    runs = [asyncio.run(_awaited(measure)) for _ in range(given.runs)]
    _tell_end(report, name, runs)


def _tell_end(report: Report, name: str, runs: list[list[float]]) -> None:
    report.add(f"{name}: end to answer, p50", [percentile(run, 50) for run in runs], "ms", at_most=5)
    report.add(f"{name}: end to answer, p99", [percentile(run, 99) for run in runs], "ms")


async def _awaited(measure: Callable[[], Awaitable[list[float]]]) -> list[float]:
    return await measure()


async def _beside_waiters(report: Report, name: str, given: argparse.Namespace, url: str) -> None:
    """The same while many others wait for tasks that are not due for an hour."""
    connections = [await Connection.open(url) for _ in range(given.waiters)]
    try:
        ids = []
        for connection in connections:
            status, answer = await connection.send("POST", f"/tasks/{TYPE}", {"taskgate": {"delay_seconds": 3600}})
            if status != 202:
                raise RuntimeError(f"{status}: {answer}")
            ids.append(answer["task_id"])
        runs = []
        for _ in range(given.runs):
            waiting = [
                asyncio.create_task(connection.send("GET", f"/tasks/{task_id}?wait=55"))
                for connection, task_id in zip(connections, ids, strict=True)
            ]
            await asyncio.sleep(2)
            runs.append(await answer_delays(url, given.tasks, given.gap))
            early = sum(each.done() for each in waiting)
            if early:
                raise RuntimeError(f"{early} of {given.waiters} waiters were answered before their time")
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for connection in connections:
                connection.close()
            connections = [await Connection.open(url) for _ in range(given.waiters)]
    finally:
        for connection in connections:
            connection.close()
    _tell_end(report, f"{name}, beside {given.waiters:,} waiters", runs)
