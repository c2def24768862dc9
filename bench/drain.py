"""No-op tasks a second through one worker process, Python and Go, against the bare SQL functions from pgbench.

Results are kept, fencing and the exact limit are on; the limit is the number of slots. The reference claims and
completes batches of as many tasks with one client, and with two under a limit of twice that: the faster one counts.
Rates come from the rows' own timestamps, first start to last end.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg

from bench.backlog import Connection, claimed, drain_rate, fill, wait_until_drained
from bench.pgbench import pgbench
from bench.processes import build_go, environment, go_worker, process, python_worker
from bench.report import Report
from bench.server import bench_server, migrated, server_facts

TASKS = {400: 120_000, 100: 80_000, 20: 40_000}
AT_LEAST = {("Go", 400): 20_000.0}
LEAST_SHARE = 0.6
Drain = Callable[[Connection, str, int, int], float]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slots", default="400,100,20", help="slots and limit, a comparison each (default 400,100,20)")
    parser.add_argument("--tasks", type=int, help="per run; less for fewer slots when not given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--who", default="Python,Go,SQL", help="Python, Go, SQL (default: all)")
    parser.add_argument("--worker", metavar="COMMAND", help="another worker of type noop, measured as well")


def run(given: argparse.Namespace) -> Report:
    who: list[str] = given.who.split(",")
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder, bench_server() as server:
        dsn = migrated(server, "drain")
        drains: dict[str, Drain] = {}
        if "Python" in who:
            drains["Python"] = _by(lambda slots: python_worker(dsn, slots))
        if "Go" in who:
            program = build_go(Path(folder))
            drains["Go"] = _by(lambda slots: go_worker(program, dsn, slots))
        if given.worker:
            other = shlex.split(given.worker)
            drains[given.worker] = _by(lambda slots: (other, environment(DATABASE_URL=dsn, TASKGATE_SLOTS=str(slots))))
        if "SQL" in who:
            drains |= {"SQL": partial(bare_sql, clients=1), "SQL, 2 clients": partial(bare_sql, clients=2)}
        if not drains:
            raise SystemExit("--who: nobody is left to measure; name Python, Go or SQL")
        report = Report("Drain", server_facts(dsn))
        with psycopg.connect(dsn, autocommit=True) as connection:
            for slots in map(int, given.slots.split(",")):
                tasks = given.tasks or TASKS.get(slots, 40_000)
                _compare(report, drains, connection, dsn, tasks, slots, given.runs)
    return report


def _compare(
    report: Report, drains: dict[str, Drain], connection: Connection, dsn: str, tasks: int, slots: int, runs: int
) -> None:
    rates: dict[str, list[float]] = {name: [] for name in drains}
    cpu: dict[str, list[float]] = {name: [] for name in drains}
    for _ in range(runs):
        for name, drain in drains.items():
            fill(connection, tasks, slots)
            spent = _cpu_of_children()
            rates[name].append(drain(connection, dsn, tasks, slots))
            cpu[name].append((_cpu_of_children() - spent) / tasks * 1e6)
    for name, values in rates.items():
        report.add(f"{slots} slots, {name}: tasks", values, "/s", at_least=AT_LEAST.get((name, slots)))
        if not name.startswith("SQL"):
            report.add(f"{slots} slots, {name}: processor time of the worker a task", cpu[name], "µs")
    if "SQL" not in rates:
        return
    reference = [max(pair) for pair in zip(rates["SQL"], rates["SQL, 2 clients"], strict=True)]
    for name, values in rates.items():
        if not name.startswith("SQL"):
            shares = [a / b for a, b in zip(values, reference, strict=True)]
            report.add(f"{slots} slots, {name} / SQL", shares, "×", at_least=LEAST_SHARE)


def _by(command_for: Callable[[int], tuple[list[str], dict[str, str]]]) -> Drain:
    """Drains by the worker that `command_for` names for a number of slots."""

    def drain(connection: Connection, dsn: str, tasks: int, slots: int) -> float:
        return worker(connection, dsn, tasks, slots, *command_for(slots))

    return drain


def worker(connection: Connection, dsn: str, tasks: int, slots: int, command: list[str], env: dict[str, str]) -> float:
    """Tasks a second with one worker process."""
    before = claimed(connection)
    with process(command, env):
        wait_until_drained(connection, tasks, before)
    return drain_rate(connection, tasks)


def bare_sql(connection: Connection, dsn: str, tasks: int, slots: int, clients: int) -> float:
    """Tasks a second of the SQL functions, called in batches of `slots` by pgbench."""
    connection.execute("SELECT taskgate.set_limit(%s)", [slots * clients])
    pgbench(dsn, "claim_complete.sql", clients, -(-tasks // (slots * clients)) + clients, batch=slots)
    return drain_rate(connection, tasks)


def _cpu_of_children() -> float:
    """CPU seconds of child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.drain", description=__doc__)
    arguments(parser)
    print(run(parser.parse_args()).table())
