"""100,000 tasks in one request, as NDJSON and as a JSON array, against asyncpg's COPY into the same table alone.

Every item has 100 bytes and is checked as a single one would be. From the first byte sent to the last byte of the
answer; the API's memory is its peak (VmHWM) during the request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import asyncpg
import psycopg
import uuid_utils

from bench.processes import api, forget_peak, memory, request
from bench.report import Report
from bench.server import bench_server, migrated, server_facts
from bench.submit import body

ITEM_BYTES = 100


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)


def run(given: argparse.Namespace) -> Report:
    item = body(ITEM_BYTES)
    forms = {
        "NDJSON": ("\n".join([item] * given.tasks).encode(), "application/x-ndjson"),
        "array": (f"[{','.join([item] * given.tasks)}]".encode(), "application/json"),
    }
    rates: dict[str, list[float]] = {name: [] for name in (*forms, "COPY")}
    peaks: dict[str, list[float]] = {name: [] for name in forms}
    with bench_server() as server:
        dsn = migrated(server, "bulk")
        report = Report("Bulk", server_facts(dsn))
        with (
            psycopg.connect(dsn, autocommit=True) as connection,
            api(dsn, TASKGATE_MAX_BODY_BYTES="20000000") as (
                url,
                child,
            ),
        ):
            before = memory(child.pid)
            for _ in range(given.runs):
                for name, (data, media_type) in forms.items():
                    _empty(connection)
                    forget_peak(child.pid)
                    begun = time.perf_counter()
                    answer = request(url, "POST", "/tasks", data, media_type)
                    rates[name].append(given.tasks / (time.perf_counter() - begun))
                    peaks[name].append(memory(child.pid, "VmHWM"))
                    _check(connection, given.tasks, answer)
                _empty(connection)
                rates["COPY"].append(given.tasks / asyncio.run(copy(dsn, [item] * given.tasks)))
    for name in forms:
        report.add(f"{name}: tasks", rates[name], "/s", at_least=50_000)
    report.add("COPY by asyncpg alone: tasks", rates["COPY"], "/s")
    for name in forms:
        report.add(f"{name} / COPY", [a / b for a, b in zip(rates[name], rates["COPY"], strict=True)], "×")
    report.add("API's memory before", before, "MiB")
    for name in forms:
        report.add(f"API's memory, peak with {name}", peaks[name], "MiB", at_most=150)
    return report


def _empty(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("TRUNCATE tasks CASCADE")
    connection.execute("CHECKPOINT")


def _check(connection: psycopg.Connection[tuple[object, ...]], tasks: int, answer: bytes) -> None:
    told = {each["task_id"] for each in json.loads(answer)}
    row = connection.execute("SELECT count(*) FROM tasks WHERE status = 'pending' AND request ? 'prompt'").fetchone()
    if len(told) != tasks or row != (tasks,):
        raise RuntimeError(f"of {tasks} tasks {len(told)} were told and {row} are in the table: {answer[:300]!r}")


async def copy(dsn: str, requests: list[str]) -> float:
    """Seconds of the COPY alone, with time-ordered ids made before."""
    rows = [(str(uuid_utils.uuid7()), "pending", "llm", each) for each in requests]
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    try:
        begun = time.perf_counter()
        await connection.copy_records_to_table(
            "tasks", records=rows, columns=["task_id", "status", "task_type", "request"]
        )
        return time.perf_counter() - begun
    finally:
        await connection.close()
