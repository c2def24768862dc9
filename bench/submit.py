"""POST of one task: taskgate against an endpoint that does nothing and against one INSERT a request.

One uvicorn process each, in turn within every round; `wrk -t1`. The body has 130 bytes. Every 202 of taskgate is
committed. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack

import psycopg

from bench import load
from bench.processes import api, uvicorn
from bench.report import Report
from bench.server import bench_server, migrated, server_facts

BODY_BYTES = 130
NAMES = ("do-nothing", "one INSERT", "taskgate")


def body(size: int = BODY_BYTES) -> str:
    text = json.dumps({"prompt": ""})
    return json.dumps({"prompt": ("Say in one sentence what this says. " * 9)[: size - len(text)]})


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", default="50,1", help="of wrk, one comparison each (default 50,1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of load for each in each round")


def run(given: argparse.Namespace) -> Report:
    with ExitStack() as stack:
        server = stack.enter_context(bench_server())
        dsn = migrated(server, "submit")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE submitted (LIKE tasks INCLUDING ALL)")
        urls = {
            "do-nothing": stack.enter_context(uvicorn("bench.apps.nothing:app"))[0],
            "one INSERT": stack.enter_context(uvicorn("bench.apps.insert:app", DATABASE_URL=dsn))[0],
            "taskgate": stack.enter_context(api(dsn))[0],
        }
        report = Report("Submit", server_facts(dsn))
        for connections in map(int, given.connections.split(",")):
            found = _compare(dsn, urls, connections, given.rounds, given.seconds)
            _tell(report, connections, found)
        return report


def _compare(
    dsn: str, urls: dict[str, str], connections: int, rounds: int, seconds: float
) -> dict[str, list[load.Load]]:
    script = load.post(body())
    found: dict[str, list[load.Load]] = {name: [] for name in NAMES}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in NAMES:  # to warm up
            load.run(f"{urls[name]}/tasks", script, connections, 1)
        for turn in range(rounds):
            for name in NAMES[turn % 3 :] + NAMES[: turn % 3]:
                connection.execute("TRUNCATE tasks CASCADE")
                connection.execute("TRUNCATE submitted")
                found[name].append(load.run(f"{urls[name]}/tasks", script, connections, seconds))
                if name == "taskgate":
                    _check(connection, found[name][-1].rate * seconds)
    return found


def _check(connection: psycopg.Connection[tuple[int]], answered: float) -> None:
    """Every answer is a row; wrk drops what is under way at its end, so there may be a few more."""
    row = connection.execute("SELECT count(*) FROM tasks WHERE status = 'pending'").fetchone()
    if row is None or row[0] < answered * 0.98:
        raise RuntimeError(f"{answered:.0f} tasks were accepted, but the table has {row}")


def _tell(report: Report, connections: int, found: dict[str, list[load.Load]]) -> None:
    at = f"c={connections}"
    nothing, insert, ours = (found[name] for name in NAMES)
    for name in NAMES:
        report.add(f"{at} {name}: requests", [each.rate for each in found[name]], "/s")
    for name in NAMES:
        report.add(f"{at} {name}: p50", [each.p50 for each in found[name]], "ms")
    for name in NAMES:
        report.add(f"{at} {name}: p99", [each.p99 for each in found[name]], "ms")
    alone = connections == 1
    by_nothing = [a.rate / b.rate for a, b in zip(ours, nothing, strict=True)]
    by_insert = [a.rate / b.rate for a, b in zip(ours, insert, strict=True)]
    slower = [a.p99 / min(b.p99, c.p99) for a, b, c in zip(ours, nothing, insert, strict=True)]
    report.add(f"{at} taskgate / do-nothing", by_nothing, "×", at_least=None if alone else 1.3)
    report.add(f"{at} taskgate / one INSERT", by_insert, "×", at_least=1.0 if alone else 2.4)
    report.add(f"{at} p99, taskgate / the better of the two", slower, "×", at_most=None if alone else 1.0)
