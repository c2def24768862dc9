"""Drain against the fastest peers, interleaved: every contender once a round, so that a busy spell hits them all."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import psycopg

from bench.backlog import fill
from bench.drain import drain
from bench.peers import measure, reference
from bench.peers.catalog import PGBOSS, PGQUEUER
from bench.peers.environment import prepare
from bench.processes import build_go, go_worker, python_worker
from bench.report import Report
from bench.server import bench_server, migrated

LIMITED = "pgqueuer, 20 slots, its own limit 20"
RATIOS = (  # ours, theirs, the least
    ("taskgate Python, 400 slots, limit 400", "pgqueuer@400", 1.3),
    ("taskgate Python, 20 slots, limit 20", LIMITED, 2.0),
    ("taskgate Python, 20 slots, limit 400", "pgqueuer@20", 2.0),
    ("taskgate Python, 20 slots, limit 20", "pgqueuer@20", 2.0),
    ("taskgate Go, 400 slots, limit 400", "pg-boss@1000", 1.3),
)


def own(tasks: int, slots: int, limit: int, program: Path | None = None) -> float:
    """Our worker; the Go one when its program is given. Measured as bench.drain does."""
    with bench_server() as server:
        dsn = migrated(server, "drain")
        command, environment = go_worker(program, dsn, slots) if program else python_worker(dsn, slots)
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill(connection, tasks, limit)
            return drain(connection, tasks, command, environment)


def versus(report: Report, cache: Path, rounds: int, tasks: int = 0) -> None:
    """Adds the rates and the ratios. Raises Unavailable when one of the two peers cannot be had.

    `tasks`: of each run; some seconds' worth when 0.
    """
    queuer, boss = prepare(PGQUEUER, cache), prepare(PGBOSS, cache)
    with tempfile.TemporaryDirectory(prefix="taskgate-noop-") as folder:
        program = build_go(Path(folder))
        many = tasks or PGQUEUER.drain_jobs[400]
        few = tasks or PGQUEUER.drain_jobs[20]
        batched = tasks or PGBOSS.drain_jobs[1000]
        contenders: dict[str, Callable[[], float]] = {
            "pgqueuer@400": partial(measure.drain, PGQUEUER, queuer, many, 400),
            "taskgate Python, 400 slots, limit 400": partial(own, many, 400, 400),
            "pgqueuer@20": partial(measure.drain, PGQUEUER, queuer, few, 20),
            "taskgate Python, 20 slots, limit 20": partial(own, few, 20, 20),
            LIMITED: partial(measure.drain, PGQUEUER, queuer, few, 20, limit=20),
            "taskgate Python, 20 slots, limit 400": partial(own, few, 20, 400),
            "pg-boss@1000": partial(measure.drain, PGBOSS, boss, batched, 1000),
            "taskgate Go, 400 slots, limit 400": partial(own, batched, 400, 400, program),
        }
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, run in contenders.items():
                found[name].append(run())
                print(f"{name}  {found[name][-1]:,.0f}/s", file=sys.stderr, flush=True)
    for name, rates in found.items():
        peer, at, slots = name.partition("@")
        if at:
            reference.judge(report, peer, f"drain@{slots}", rates)
        else:
            report.add(name, rates, "/s")
    for ours, theirs, least in RATIOS:
        ratio = median(found[ours]) / median(found[theirs])
        report.add(f"{ours} / {theirs}, of the medians", ratio, "×", at_least=least)
