"""What the drain comparison sets against each other, and what bounds its reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import psycopg
import pytest

from bench import drain
from bench.backlog import Connection, fill
from bench.report import Report
from bench.server import bench_server, migrated

TASKS, SLOTS = 300, 20
RAN = """
SELECT a.worker_id, count(b) FILTER (WHERE b.worker_id = a.worker_id), count(b)
FROM tasks a JOIN tasks b ON b.started_at <= a.started_at AND b.finished_at > a.started_at
GROUP BY a.task_id, a.worker_id
"""


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with bench_server() as server:
        yield migrated(server, "drain")


@pytest.fixture
def connection(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        fill(opened, TASKS, SLOTS)
        yield opened


@pytest.mark.parametrize("clients", [1, 2])
def test_the_reference_drains_everything_under_the_limit_of_the_worker(
    connection: Connection, dsn: str, clients: int
) -> None:
    assert drain.drain(connection, TASKS, *drain.bare_sql(dsn, SLOTS, clients)) > 0
    assert connection.execute("SELECT max_concurrent FROM taskgate.settings").fetchone() == (SLOTS,)
    rows = connection.execute(RAN).fetchall()
    held = {str(worker): 0 for worker, _, _ in rows}
    for worker, by_it, _ in rows:
        held[str(worker)] = max(held[str(worker)], int(str(by_it)))
    assert held
    assert set(held.values()) == {SLOTS // clients}
    assert max(int(str(by_all)) for _, _, by_all in rows) <= SLOTS


def test_a_process_that_ends_too_early_is_told_at_once_with_its_last_words(connection: Connection, dsn: str) -> None:
    command, env = drain.bare_sql(f"{dsn}_missing", SLOTS, 1)
    with pytest.raises(RuntimeError, match=r"(?s)pgbench ended with 1:.*drain_missing"):
        drain.drain(connection, TASKS, command, env)
    with pytest.raises(RuntimeError, match="ended with 0"):
        drain.drain(connection, TASKS, [sys.executable, "-c", ""], env)


def test_twenty_slots_are_measured_under_the_limit_of_a_fleet_too() -> None:
    assert drain.settings([400, 100, 20]) == [(400, 400), (100, 100), (20, 20), (20, 400)]


def test_only_400_slots_have_targets() -> None:
    report = Report("", "")
    rates = {"taskgate Go": [15_000.0, 25_000.0], "SQL, one client": [30_000.0, 20_000.0]}
    rates["SQL, two clients"] = [20_000.0, 50_000.0]
    for slots in (400, 100, 20):
        drain.tell(report, rates, {"taskgate Go": [20.0, 20.0]}, slots, slots)
    drain.tell(report, {"taskgate Go": [9_000.0]}, {"taskgate Go": [20.0]}, 20, 400)
    lines = {measure.name: measure for measure in report.measures}
    assert {name: measure.at_least for name, measure in lines.items() if measure.at_least} == {
        "taskgate Go, 400 slots, limit 400: tasks": 20_000,
        "taskgate Go, 400 slots, limit 400 / SQL": 0.6,
    }
    assert lines["taskgate Go, 100 slots, limit 100 / SQL"].runs == [0.5, 0.5]  # the faster of each round
    assert lines["SQL, two clients, batches of 10, limit 20: tasks"].runs == [20_000, 50_000]
    assert lines["taskgate Go, 20 slots, limit 400: tasks"].value == 9_000
    assert len([name for name in lines if name.endswith("/ SQL")]) == 3  # none where the limit is the fleet's
