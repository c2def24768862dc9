"""GET of finished tasks: taskgate against endpoints that do nothing.

1,000 finished tasks in turn, `wrk -t1 -c50`. The yardstick is the typed POST endpoint that does nothing, as in
`submit`; beside it a GET endpoint that does nothing.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

import psycopg

from bench import load
from bench.processes import api, uvicorn
from bench.report import Report
from bench.server import bench_server, migrated, server_facts
from bench.submit import body

TASKS = 1000
FINISHED = """
INSERT INTO tasks (task_id, status, task_type, request, result, attempts, claim_token, settled_token, worker_id,
                   started_at, finished_at, expires_at)
SELECT 'finished-' || i, 'completed', 'llm', %s::jsonb, jsonb_build_object('text', repeat('An answer. ', 10)), 1, i, i,
       'bench', now(), now(), now() + interval '1 day'
FROM generate_series(1, %s) AS i
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=50, help="of wrk (default 50)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of load for each in each round")


def run(given: argparse.Namespace) -> Report:
    with ExitStack() as stack:
        dsn = migrated(stack.enter_context(bench_server()), "get")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(FINISHED, [body(), TASKS])
            connection.execute("VACUUM ANALYZE tasks")
        nothing = stack.enter_context(uvicorn("bench.apps.nothing:app"))[0]
        ours = stack.enter_context(api(dsn))[0]
        gets = load.get([f"/tasks/finished-{i}" for i in range(1, TASKS + 1)])
        loads = {
            "do-nothing POST": (f"{nothing}/tasks", load.post(body())),
            "do-nothing GET": (nothing, gets),
            "taskgate": (ours, gets),
        }
        found: dict[str, list[load.Load]] = {name: [] for name in loads}
        names = list(loads)
        for name in names:  # to warm up
            load.run(*loads[name], given.connections, 1)
        for turn in range(given.rounds):
            for name in names[turn % 3 :] + names[: turn % 3]:
                found[name].append(load.run(*loads[name], given.connections, given.seconds))
        report = Report("Get", server_facts(dsn))
    for name in names:
        report.add(f"{name}: requests", [each.rate for each in found[name]], "/s")
        report.add(f"{name}: p50", [each.p50 for each in found[name]], "ms")
        report.add(f"{name}: p99", [each.p99 for each in found[name]], "ms")
    for name, least in (("do-nothing POST", 1.0), ("do-nothing GET", None)):
        ratios = [a.rate / b.rate for a, b in zip(found["taskgate"], found[name], strict=True)]
        report.add(f"taskgate / {name}", ratios, "×", at_least=least)
    return report
