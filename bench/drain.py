"""No-op tasks a second through one worker process, Python and Go, against the bare SQL functions from pgbench.

Results are kept, fencing and the exact limit are on; the limit is the number of slots. The reference runs under that
limit too: one pgbench client that claims and completes batches of as many tasks, and two with half of that each; the
faster one counts. With 20 slots the workers are measured under a fleet's limit as well, where there is room to claim
ahead. Rates come from the rows' own timestamps, first start to last end.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psycopg

from bench.backlog import Connection, claimed, drain_rate, fill, wait_until_drained
from bench.pgbench import endless
from bench.processes import build_go, environment, go_worker, process, python_worker
from bench.report import Report
from bench.server import bench_server, migrated, server_facts

TASKS = {400: 120_000, 100: 80_000, 20: 40_000}
LIMITS = {20: (20, 400)}
"""By slots, where it is not the slots alone. Beyond them a worker may claim ahead."""
AT_LEAST = {("taskgate Go", 400): 20_000.0}
LEAST_SHARE = {400: 0.6}
"""Of the reference, by slots."""
CLIENTS = {"SQL, one client": 1, "SQL, two clients": 2}
Process = tuple[list[str], dict[str, str]]
"""Command and environment."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slots", default="400,100,20", help="a comparison each (default 400,100,20)")
    parser.add_argument("--tasks", type=int, help="per run; less for fewer slots when not given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--who", default="Python,Go,SQL", help="Python, Go, SQL (default: all)")
    parser.add_argument("--worker", metavar="COMMAND", help="another worker of type noop, measured as well")


def run(given: argparse.Namespace) -> Report:
    who: list[str] = given.who.split(",")
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder, bench_server() as server:
        dsn = migrated(server, "drain")
        measured: dict[str, Callable[[int], Process]] = {}
        if "Python" in who:
            measured["taskgate Python"] = lambda slots: python_worker(dsn, slots)
        if "Go" in who:
            program = build_go(Path(folder))
            measured["taskgate Go"] = lambda slots: go_worker(program, dsn, slots)
        if given.worker:
            other = shlex.split(given.worker)
            measured[given.worker] = lambda slots: (other, environment(DATABASE_URL=dsn, TASKGATE_SLOTS=str(slots)))
        if "SQL" in who:
            measured["SQL, one client"] = lambda slots: bare_sql(dsn, slots, 1)
            measured["SQL, two clients"] = lambda slots: bare_sql(dsn, slots, 2)
        if not measured:
            raise SystemExit("--who: nobody is left to measure; name Python, Go or SQL")
        report = Report("Drain", server_facts(dsn))
        with psycopg.connect(dsn, autocommit=True) as connection:
            for slots, limit in settings(map(int, given.slots.split(","))):
                tasks = given.tasks or TASKS.get(slots, 40_000)
                processes = {name: of(slots) for name, of in measured.items() if name not in CLIENTS or slots == limit}
                rates, cpu = _take_turns(connection, processes, tasks, limit, given.runs)
                tell(report, rates, cpu, slots, limit)
    return report


def settings(all_slots: Iterable[int]) -> list[tuple[int, int]]:
    """Slots and limit of each comparison."""
    return [(slots, limit) for slots in all_slots for limit in LIMITS.get(slots, (slots,))]


def _take_turns(
    connection: Connection, processes: Mapping[str, Process], tasks: int, limit: int, runs: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Tasks a second, and processor time a task in microseconds."""
    rates: dict[str, list[float]] = {name: [] for name in processes}
    cpu: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(runs):
        for name, (command, env) in processes.items():
            fill(connection, tasks, limit)
            spent = _cpu_of_children()
            rates[name].append(drain(connection, tasks, command, env))
            cpu[name].append((_cpu_of_children() - spent) / tasks * 1e6)
    return rates, cpu


def tell(
    report: Report,
    rates: Mapping[str, Sequence[float]],
    cpu: Mapping[str, Sequence[float]],
    slots: int,
    limit: int,
) -> None:
    """Adds the lines of one comparison."""
    setting = f"{slots} slots, limit {limit}"
    workers = [name for name in rates if name not in CLIENTS]
    for name in workers:
        at_least = AT_LEAST.get((name, slots)) if slots == limit else None
        report.add(f"{name}, {setting}: tasks", rates[name], "/s", at_least=at_least)
        report.add(f"{name}, {setting}: processor time of the worker a task", cpu[name], "µs")
    references = [name for name in rates if name in CLIENTS]
    for name in references:
        report.add(f"{name}, batches of {batch(slots, CLIENTS[name])}, limit {limit}: tasks", rates[name], "/s")
    if not references:
        return
    fastest = [max(round_) for round_ in zip(*(rates[name] for name in references), strict=True)]
    for name in workers:
        shares = [ours / bare for ours, bare in zip(rates[name], fastest, strict=True)]
        report.add(f"{name}, {setting} / SQL", shares, "×", at_least=LEAST_SHARE.get(slots))


def drain(connection: Connection, tasks: int, command: Sequence[str], env: Mapping[str, str]) -> float:
    """Tasks a second with one process, which is stopped when none is left."""
    before = claimed(connection)
    with process(command, env) as child:
        wait_until_drained(connection, [child], tasks, before)
    return drain_rate(connection, tasks)


def bare_sql(dsn: str, slots: int, clients: int) -> Process:
    """pgbench, which calls the SQL functions in batches; all its clients together hold no more than `slots`."""
    return endless(dsn, "claim_complete.sql", clients, batch=batch(slots, clients)), environment()


def batch(slots: int, clients: int) -> int:
    return max(1, slots // clients)


def _cpu_of_children() -> float:
    """CPU seconds of child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.drain", description=__doc__)
    arguments(parser)
    print(run(parser.parse_args()).table())
