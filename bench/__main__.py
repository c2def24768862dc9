"""`python -m bench` lists the comparisons; `python -m bench NAME` runs one and prints its table."""

from __future__ import annotations

import argparse
import importlib
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast

from bench import machine
from bench.report import Report

NAMES = ("submit", "get", "bulk", "drain", "single", "latency", "idle", "memory", "scale", "pinned")
RESULTS = Path(__file__).with_name("RESULTS.md")
EXIT_BUSY = 3


class Comparison(Protocol):
    """What a module of bench/ that is in NAMES has. Its docstring's first line says what it compares."""

    __doc__: str | None

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, given: argparse.Namespace) -> Report: ...


def load(name: str) -> Comparison:
    return cast("Comparison", importlib.import_module(f"bench.{name}"))


def summary(comparison: Comparison) -> str:
    return (comparison.__doc__ or "").strip().partition("\n")[0]


def main() -> int:
    """Exit code 1: a target was missed; 3: the machine is busy, so nothing was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--record", action="store_true", help=f"append the table to bench/{RESULTS.name}")
    common.add_argument("--anyway", action="store_true", help="run on a busy machine too; the figures do not count")
    parsers = parser.add_subparsers(dest="name", metavar="NAME")
    for name in NAMES:
        comparison = load(name)
        one = parsers.add_parser(
            name,
            parents=[common],
            help=summary(comparison),
            description=comparison.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        comparison.arguments(one)
    given = parser.parse_args()
    if given.name is None:
        for name in NAMES:
            print(f"{name:10} {summary(load(name))}")
        print("\npython -m bench NAME [--record] [options]; options: python -m bench NAME --help")
        return 0
    if given.anyway and given.record:
        parser.error("--record is for figures that count: leave --anyway out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are cleaned up then too
    quiet = machine.look() if given.anyway else machine.wait_until_quiet()
    if not quiet.enough:
        print(f"NOT COUNTED: the machine is busy ({quiet}).", file=sys.stderr)
        if not given.anyway:
            print("Nothing was run. Wait for the other work to end, or try with --anyway.", file=sys.stderr)
            return EXIT_BUSY
    return _run(given, quiet)


def _run(given: argparse.Namespace, quiet: machine.Quiet) -> int:
    report = load(given.name).run(given)
    told = [part for part in sys.argv[1:] if part != "--record"]
    today = datetime.now(UTC)
    text = report.markdown(
        f"{today.day} {today:%B %Y}", f"python -m bench {shlex.join(told)}", machine.describe(), str(quiet)
    )
    print(text)
    if given.record:
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    if not quiet.enough:
        print("NOT COUNTED: the machine was busy.")
        return EXIT_BUSY
    return int(not all(measure.met for measure in report.measures))


if __name__ == "__main__":
    sys.exit(main())
