"""The origin's way: 20 worker processes (Go) of one slot with tasks of 0 ms, against the origin's own claim and
completion, run by 20 pgbench clients on the origin's own table. The limit is 20 in all. Ours work as they come, and
without claiming ahead.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg

from bench.backlog import Connection, claimed, drain_rate, fill, wait_until_drained
from bench.pgbench import pgbench
from bench.processes import build_go, go_worker, process
from bench.report import Report
from bench.server import bench_server, migrated, server_facts

ORIGIN_TABLE = """
CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY,
    status TEXT NOT NULL,
    task_type TEXT,
    request JSONB,
    result JSONB,
    error TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    locked_until TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    expires_at TIMESTAMPTZ
);
CREATE INDEX idx_tasks_pending_created_at ON tasks (created_at)
WHERE status = 'pending' AND task_type IS NOT NULL AND request IS NOT NULL;
CREATE INDEX idx_tasks_running_locked_until ON tasks (locked_until)
WHERE status = 'running' AND request IS NOT NULL;
"""
ORIGIN_FILL = """
INSERT INTO tasks (task_id, status, task_type, request, created_at)
SELECT gen_random_uuid()::text, 'pending', 'noop', '{"n": 1}', now() + i * interval '1 microsecond'
FROM generate_series(1, %s) AS i
"""
LIMIT = 20
PLAIN = {"TASKGATE_CLAIM_AHEAD": "0"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=12_000, help="per run")
    parser.add_argument("--workers", type=int, default=LIMIT)
    parser.add_argument("--runs", type=int, default=3)


def run(given: argparse.Namespace) -> Report:
    ours: list[float] = []
    plain: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder, bench_server() as server:
        program = build_go(Path(folder))
        dsn, origin = migrated(server, "single"), server.create_database("origin")
        dsn_plain = migrated(server, "plain")  # workers that found the limit reached are told of room for a minute
        report = Report("Single-slot workers", server_facts(dsn))
        with (
            psycopg.connect(dsn, autocommit=True) as connection,
            psycopg.connect(dsn_plain, autocommit=True) as connection_plain,
            psycopg.connect(origin, autocommit=True) as their_connection,
        ):
            their_connection.execute(ORIGIN_TABLE)
            for _ in range(given.runs):
                ours.append(_ours(connection, dsn, program, given.tasks, given.workers, {}))
                plain.append(_ours(connection_plain, dsn_plain, program, given.tasks, given.workers, PLAIN))
                theirs.append(_theirs(their_connection, origin, given.tasks, given.workers))
    report.add(f"taskgate, {given.workers} Go workers of one slot: tasks", ours, "/s")
    report.add(f"the origin's SQL, {given.workers} pgbench clients: tasks", theirs, "/s")
    report.add(f"taskgate, {given.workers} Go workers of one slot, TASKGATE_CLAIM_AHEAD=0: tasks", plain, "/s")
    report.add("taskgate / the origin", [a / b for a, b in zip(ours, theirs, strict=True)], "×", at_least=2.0)
    shares = [a / b for a, b in zip(plain, theirs, strict=True)]
    report.add("taskgate, TASKGATE_CLAIM_AHEAD=0 / the origin", shares, "×")
    return report


def _ours(connection: Connection, dsn: str, program: Path, tasks: int, workers: int, values: dict[str, str]) -> float:
    fill(connection, tasks, LIMIT)
    before = claimed(connection)
    with ExitStack() as stack:
        children = [stack.enter_context(process(*go_worker(program, dsn, 1, **values))) for _ in range(workers)]
        wait_until_drained(connection, children, tasks, before)
    return drain_rate(connection, tasks)


def _theirs(connection: Connection, dsn: str, tasks: int, clients: int) -> float:
    connection.execute("TRUNCATE tasks")
    connection.execute(ORIGIN_FILL, [tasks])
    connection.execute("VACUUM ANALYZE tasks")
    connection.execute("CHECKPOINT")
    rate = pgbench(dsn, "origin.sql", clients, tasks // clients)
    row = connection.execute("SELECT count(*) FROM tasks WHERE status = 'completed'").fetchone()
    if row != (tasks // clients * clients,):
        raise RuntimeError(f"{row} of {tasks} tasks were completed")
    return rate
