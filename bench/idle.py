"""What an idle fleet costs the database: 200 single-slot Go workers, and 20 Python ones, with notifications on.

The fleet is given time to come to rest: until its calls hardly vary for 15 s, a minute at most. Then processor time of
every process of PostgreSQL over half a minute, in percent of one core; calls by pg_stat_statements; then tasks posted
singly: how soon they start.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from bench.fleet import idle_fleet, start_delays
from bench.processes import api, build_go, cpu_seconds
from bench.report import Report, percentile
from bench.server import bench_server, migrated, server_facts

SETTINGS = {"max_connections": "1000", "shared_preload_libraries": "pg_stat_statements"}


REST_SECONDS, LOOK_SECONDS = 60.0, 5.0
STEADY = 0.25
"""At rest: each of the last three looks has a rate of calls that differs by less than this part from their mean."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--go", type=int, default=200, help="single-slot Go workers")
    parser.add_argument("--python", type=int, default=20, help="single-slot Python workers")
    parser.add_argument("--seconds", type=float, default=30, help="of looking on, per run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=50, help="posted afterwards")


def run(given: argparse.Namespace) -> Report:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-bench-")))
        server = stack.enter_context(bench_server(SETTINGS))
        dsn = migrated(server, "idle", limit=400)
        url, _ = stack.enter_context(api(dsn))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
        report = Report("Idle fleet", f"{server_facts(dsn)}, max_connections {SETTINGS['max_connections']}")
        with psycopg.connect(dsn, autocommit=True) as connection:
            busy, calls = _look(connection, server.pid, given.seconds)
            report.add("no worker, one API: database's processor time, of one core", busy * 100, "%")
            report.add("no worker, one API: calls", calls, "/s")
        for who, size in (("Go", given.go), ("Python", given.python)):
            if size:
                program = build_go(folder) if who == "Go" else None
                with idle_fleet(dsn, size, 1, program), psycopg.connect(dsn, autocommit=True) as connection:
                    _come_to_rest(connection)
                    looks = [_look(connection, server.pid, given.seconds) for _ in range(given.runs)]
                    delays = asyncio.run(start_delays(url, dsn, given.tasks, 0.2))
                    report.notes += _statements(connection, f"{size} {who} workers")
                held = size >= 200
                name = f"{size} {who} workers"
                share = [busy * 100 for busy, _ in looks]
                report.add(f"{name}: database's processor time, of one core", share, "%", at_most=3 if held else None)
                report.add(f"{name}: calls", [calls for _, calls in looks], "/s", at_most=50 if held else None)
                report.add(f"{name}: submit to start, p50", percentile(delays, 50), "ms", at_most=10)
                report.add(f"{name}: submit to start, p99", percentile(delays, 99), "ms")
    return report


def _come_to_rest(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Waits until the start of the fleet is over: connections, first claims, plans."""
    deadline = time.monotonic() + REST_SECONDS
    rates: list[float] = []
    while time.monotonic() < deadline:
        connection.execute("SELECT pg_stat_statements_reset()")
        time.sleep(LOOK_SECONDS)
        rates = [*rates, _calls(connection)][-3:]
        mean = sum(rates) / len(rates)
        if len(rates) == 3 and all(abs(rate - mean) <= STEADY * mean for rate in rates):
            return


def _calls(connection: psycopg.Connection[tuple[object, ...]]) -> float:
    """Since the last reset, those from outside a function."""
    row = connection.execute("SELECT sum(calls)::float8 FROM pg_stat_statements WHERE toplevel").fetchone()
    return float(str(row[0])) if row else 0.0


def _look(connection: psycopg.Connection[tuple[object, ...]], postmaster: int, seconds: float) -> tuple[float, float]:
    """Cores in use, and calls a second."""
    connection.execute("SELECT pg_stat_statements_reset()")
    spent, begun = cpu_seconds(postmaster), time.monotonic()
    time.sleep(seconds)
    busy = (cpu_seconds(postmaster) - spent) / (time.monotonic() - begun)
    return busy, _calls(connection) / seconds


def _statements(connection: psycopg.Connection[tuple[object, ...]], name: str) -> list[str]:
    """What was called most since the last look began."""
    rows = connection.execute(
        "SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 90) FROM pg_stat_statements "
        "WHERE toplevel ORDER BY calls DESC LIMIT 5"
    ).fetchall()
    return [f"{name}, from the last look on: {calls} × `{query}`" for calls, query in rows]
