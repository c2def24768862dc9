"""A random walk over the SQL functions, SQL-only citizens among them, with the invariants checked after each step."""

from __future__ import annotations

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol.machine import Machine
from tests.protocol.origin import OriginWorker
from tests.protocol.tools import Db
from tests.protocol.walk import MAX_ATTEMPTS


def test_the_invariants_hold_on_every_walk(either_postgres: EmbeddedPostgres) -> None:
    dsn = either_postgres.create_database("machine")
    migrate(dsn, configured={"max_concurrent": 2, "max_attempts": MAX_ATTEMPTS})
    with Db(dsn) as db:
        db.run("SET synchronous_commit = off")
        origin_workers = [OriginWorker(psycopg.connect(dsn), max_attempts=MAX_ATTEMPTS) for _ in range(2)]
        run_state_machine_as_test(
            lambda: Machine(db, origin_workers),  # type: ignore[arg-type]  # a factory will do, says its documentation
            settings=settings(
                max_examples=40,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                database=None,
            ),
        )
        for worker in origin_workers:
            worker.close()
    either_postgres.drop_database("machine")
