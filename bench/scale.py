"""A small table against one of 1 M pending and 10 M finished rows: drain, single calls, and retention beside them.

Parts: `drain`: a worker of 400 slots at limit 400, claims a second over some seconds at full speed, in turn on both;
`calls`: single calls on one connection; `purge`: 1 M expired rows are deleted in batches while single tasks are
claimed, then while a worker drains; nobody may be seen waiting for a lock that the purging session holds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg

from bench import big, purging, window
from bench.backlog import Connection, fill
from bench.calls import FIRST_GET, call_times
from bench.processes import build_go, go_worker, python_worker
from bench.report import Report
from bench.server import bench_server, migrated, server_facts

SLOTS = 400
SMALL_BACKLOG = 500_000
FLAT = 1.5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--finished", type=int, default=10_000_000)
    parser.add_argument("--expired", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the data there, and find them again")
    parser.add_argument("--build", action="store_true", help="only make the tables; needs --keep")
    parser.add_argument("--parts", default="drain,calls,purge", help="drain, calls, purge (default: all)")
    parser.add_argument("--who", default="Python,Go", help="Python, Go (default: both)")
    parser.add_argument("--seconds", type=float, default=8, help="at full speed, per run")
    parser.add_argument("--runs", type=int, default=3)


def run(given: argparse.Namespace) -> Report:
    if given.build and not given.keep:
        raise SystemExit("--build makes tables to be found again: name their folder with --keep DIR")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-bench-")))
        server = stack.enter_context(bench_server(keep=given.keep))
        small, large = migrated(server, "small", SLOTS), migrated(server, "large", SLOTS)
        report = Report("Table scale", server_facts(large))
        on_small = stack.enter_context(psycopg.connect(small, autocommit=True))
        on_large = stack.enter_context(psycopg.connect(large, autocommit=True))
        _build(on_large, given)
        rows = on_large.execute("SELECT pg_size_pretty(pg_total_relation_size('tasks'))").fetchone()
        report.notes.append(f"large: {given.pending:,} pending, {given.finished:,} finished rows, {rows and rows[0]}")
        if given.build:
            return report
        parts = given.parts.split(",")
        whos: list[str] = given.who.split(",")
        program = build_go(folder) if "Go" in whos else None

        def worker(who: str, dsn: str) -> tuple[list[str], dict[str, str]]:
            return go_worker(program, dsn, SLOTS) if who == "Go" and program else python_worker(dsn, SLOTS)

        if "calls" in parts:
            _calls(report, given, {"small": (small, on_small), "large": (large, on_large)})
        if "drain" in parts:
            for who in whos:
                rates: dict[str, list[float]] = {"small": [], "large": []}
                for _ in range(given.runs):
                    for name, dsn, connection in (("small", small, on_small), ("large", large, on_large)):
                        _refill(connection, name, given)
                        with window.draining(connection, *worker(who, dsn)):
                            rates[name].append(window.rate(connection, given.seconds))
                for name, values in rates.items():
                    report.add(f"{who}, {name} table: tasks", values, "/s")
                ratios = [a / b for a, b in zip(rates["large"], rates["small"], strict=True)]
                report.add(f"{who}, large / small", ratios, "×", at_least=0.85)
        if "purge" in parts:
            _refill(on_large, "large", given)
            big.add_expired(on_large, given.expired)
            big.settle(on_large)
            purging.measure(report, large, on_large, whos[0], worker(whos[0], large), given.seconds)
    return report


def _build(connection: Connection, given: argparse.Namespace) -> None:
    before = big.count(connection, "completed"), big.count(connection, "pending")
    big.add_finished(connection, given.finished)
    big.add_pending(connection, given.pending)
    if before[0] < given.finished or before[1] < given.pending:
        big.settle(connection)


def _refill(connection: Connection, name: str, given: argparse.Namespace) -> None:
    if name == "small":
        fill(connection, SMALL_BACKLOG, SLOTS)
        return
    connection.execute("SELECT taskgate.set_limit(%s)", [SLOTS])
    big.add_pending(connection, given.pending)
    connection.execute("CHECKPOINT")


def _calls(report: Report, given: argparse.Namespace, tables: dict[str, tuple[str, Connection]]) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in tables}
    fill(tables["small"][1], 20_000, SLOTS)
    ids = [f"{random.randint(1, given.finished):08x}{big.KEPT}" for _ in range(1000)]
    for _ in range(given.runs):
        for name, (dsn, _) in tables.items():
            found[name].append(asyncio.run(call_times(dsn, ids if name == "large" else ())))
    for call in found["small"][0]:
        small, large = ([run[call] for run in found[name]] for name in ("small", "large"))
        report.add(f"{call}, small table", small, "ms")
        report.add(f"{call}, large table", large, "ms")
        ratios = [a / b for a, b in zip(large, small, strict=True)]
        report.add(f"{call}, large / small", ratios, "×", at_most=None if call == FIRST_GET else FLAT)
