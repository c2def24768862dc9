"""Full drain while a reader pins the oldest snapshot, so that no dead row can be removed.

A REPEATABLE READ transaction stays open for two minutes over 3 M pending tasks or more; its backend_xmin is asserted
all the time. Claims a second of one worker (400 slots, limit 400) in windows of ten seconds before, meanwhile and
afterwards. Full speed: 90 % of the rate before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from bench import big, window
from bench.backlog import Connection
from bench.processes import build_go, go_worker, python_worker
from bench.report import Report
from bench.server import bench_server, migrated, server_facts

SLOTS = 400
LEAST_PENDING = 3_000_000
FULL_SPEED = 0.9
XMIN = "SELECT backend_xmin FROM pg_stat_activity WHERE pid = %s"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--who", choices=("Python", "Go"), default="Python")
    parser.add_argument("--pending", type=int, default=7_000_000, help="enough for the whole run, at the worker's rate")
    parser.add_argument("--least", type=int, default=LEAST_PENDING, help="pending when the reader begins, asserted")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the data there; what is missing is added")
    parser.add_argument("--build", action="store_true", help="only make the table; needs --keep")
    parser.add_argument("--before", type=int, default=3, help="windows before the reader begins")
    parser.add_argument("--pinned", type=int, default=12, help="windows while it is open")
    parser.add_argument("--after", type=int, default=12, help="windows at most afterwards")
    parser.add_argument("--seconds", type=float, default=10, help="of a window")


def run(given: argparse.Namespace) -> Report:
    if given.build and not given.keep:
        raise SystemExit("--build makes a table to be found again: name its folder with --keep DIR")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-bench-")))
        dsn = migrated(stack.enter_context(bench_server(keep=given.keep)), "pinned", SLOTS)
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute("SELECT taskgate.set_limit(%s)", [SLOTS])
        big.add_pending(connection, given.pending)
        big.settle(connection)
        report = Report("Drain beside a pinned snapshot", server_facts(dsn))
        if given.build:
            return report
        worker = go_worker(build_go(folder), dsn, SLOTS) if given.who == "Go" else python_worker(dsn, SLOTS)
        with window.draining(connection, *worker):
            before = [window.rate(connection, given.seconds) for _ in range(given.before)]
            meanwhile = _pinned(dsn, connection, given)
            ended = time.monotonic()
            after, recovered = [], None
            for _ in range(given.after):
                after.append(window.rate(connection, given.seconds))
                if after[-1] >= FULL_SPEED * median(before):
                    recovered = time.monotonic() - ended
                    break
    report.add(f"{given.who}, before: tasks", before, "/s")
    report.add(f"{given.who}, snapshot pinned: tasks", meanwhile, "/s")
    report.add("slowest window / before", min(meanwhile) / median(before), "×", at_least=0.6)
    report.add("afterwards: tasks", after, "/s")
    report.add("full speed again after", float("inf") if recovered is None else recovered, "s", at_most=120)
    report.notes.append("pinned, window by window: " + ", ".join(f"{rate:,.0f}" for rate in meanwhile))
    report.notes.append("afterwards: " + ", ".join(f"{rate:,.0f}" for rate in after))
    return report


def _pinned(dsn: str, connection: Connection, given: argparse.Namespace) -> list[float]:
    """The rates while a reader holds its snapshot. Raises RuntimeError when it did not, or the backlog is short."""
    if big.count(connection, "pending") < given.least:
        raise RuntimeError(f"fewer than {given.least:,} tasks are pending: raise --pending")
    with psycopg.connect(dsn) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM pg_class")
        xmin = _xmin(connection, reader)
        rates = []
        for _ in range(given.pinned):
            rates.append(window.rate(connection, given.seconds))
            if _xmin(connection, reader) != xmin:
                raise RuntimeError("the reader lost its snapshot")
        reader.rollback()
    return rates


def _xmin(connection: Connection, reader: psycopg.Connection[Any]) -> str:
    row = connection.execute(XMIN, [reader.info.backend_pid]).fetchone()
    if row is None or row[0] is None:
        raise RuntimeError("the reader holds no snapshot")
    return str(row[0])
