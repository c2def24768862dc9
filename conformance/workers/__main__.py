"""`python -m conformance.workers --worker "python -m taskgate.worker"`: does that worker keep the protocol?"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial

from conformance.workers.cases import BadCase, Case, load_cases
from conformance.workers.runner import Outcome, run_cases
from conformance.workers.soak import Soak, report
from conformance.workers.world import Databases


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.workers", description=__doc__)
    parser.add_argument("--worker", action="append", required=True, metavar="COMMAND", help="may be repeated")
    parser.add_argument("--worker-name", action="append", default=[], metavar="NAME", help="in the same order")
    parser.add_argument("--level", choices=["basic", "full"], default="full")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the cases' names and levels, and end")
    parser.add_argument("--dsn", help="a PostgreSQL to create databases in; default: an embedded one")
    parser.add_argument(
        "--soak",
        type=float,
        metavar="SECONDS",
        help="instead of the cases: all workers and SQL-only ones together, under random SIGKILL and SIGTERM. "
        "Write how many processes of a worker as N*COMMAND",
    )
    given = parser.parse_args()
    try:
        cases = load_cases(level=given.level, names=given.case)
    except BadCase as error:
        print(error, file=sys.stderr)
        return 2
    if given.list:
        for case in cases:
            print(f"{case.level:6} {case.id}")
        return 0
    if given.soak:
        return asyncio.run(_soak(given.worker, given.soak, given.dsn))
    names = given.worker_name + given.worker[len(given.worker_name) :]
    return asyncio.run(_run(dict(zip(names, given.worker, strict=True)), cases, given.dsn))


async def _run(workers: dict[str, str], cases: list[Case], dsn: str | None) -> int:
    databases = Databases(dsn)
    failed = 0
    try:
        await databases.start()
        for name, command in workers.items():
            begun = time.monotonic()
            outcomes = await run_cases(cases, command, databases, partial(_say, name))
            bad = sum(each.wrong is not None for each in outcomes)
            failed += bad
            seconds = time.monotonic() - begun
            print(f"{name}: {len(outcomes) - bad} passed, {bad} failed in {seconds:.0f} s", flush=True)
    finally:
        await databases.stop()
    return 1 if failed else 0


def _say(name: str, outcome: Outcome) -> None:
    verdict = "passed" if outcome.wrong is None else "FAILED"
    print(f"{verdict} {name} {outcome.case.id} ({outcome.seconds:.1f} s)", flush=True)
    if outcome.wrong is not None:
        print("  " + outcome.wrong.replace("\n", "\n  "), flush=True)


async def _soak(workers: list[str], seconds: float, dsn: str | None) -> int:
    databases = Databases(dsn)
    try:
        await databases.start()
        result = await Soak(_counted(workers), seconds).run(databases)
    finally:
        await databases.stop()
    print(report(result))
    return 1 if result.wrong else 0


def _counted(workers: list[str]) -> list[str]:
    """`4*COMMAND` is four processes of it."""
    commands: list[str] = []
    for worker in workers:
        count, star, command = worker.partition("*")
        commands += [command] * int(count) if star and count.strip().isdigit() else [worker]
    return commands


if __name__ == "__main__":
    sys.exit(main())
