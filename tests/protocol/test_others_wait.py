"""others_wait: whether tasks of types that a worker does not serve wait, at the same cost however many flows exist."""

from __future__ import annotations

import psycopg
import pytest

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol import plans
from tests.protocol.tools import Db

FLOWS = 60_000


@pytest.mark.parametrize(
    ("mine", "others", "wait"),
    [
        (["m"], ["m"], False),
        (["m"], ["a"], True),
        (["m"], ["z"], True),
        (["b", "y"], ["b", "y"], False),
        (["y", "b", "y"], ["y", "b"], False),  # in any order, one of them twice
        (["b", "y"], ["m"], True),
        (["b", "y"], ["a"], True),
        (["b", "y"], ["z"], True),
        (["b", "y"], ["b", "b2"], True),
        (["b", "m", "y"], ["n"], True),
        (["b", "m", "y"], ["m"], False),
        (["a_z", "ab", "a-y", "a.x", "a1"], ["a_z", "ab", "a-y", "a.x", "a1"], False),
        (["a_z", "ab"], ["a1"], True),
        ([], ["a"], True),
        ([None, "b"], ["c"], True),
        ([None, "b"], ["a"], True),
        ([None, "b"], ["b"], False),
        (None, ["a"], True),
        (["b"], [], False),
        ([], [], False),
    ],
)
def test_others_wait(db: Db, mine: list[str] | None, others: list[str], wait: bool) -> None:
    for name in others:
        db.enqueue(f"task-{name}", task_type=name)
    assert db.value("SELECT others_wait(%s::text[])", mine) is wait


def test_others_wait_in_a_database_of_another_order(either_postgres: EmbeddedPostgres) -> None:
    """Where the database's own order puts `ab` before `a_z`, unlike the index."""
    name = "another_order"
    order = "LOCALE_PROVIDER icu ICU_LOCALE 'de-u-ka-shifted' ENCODING 'UTF8'"
    with psycopg.connect(either_postgres.dsn, autocommit=True) as connection:
        try:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 {order}".encode())
        except psycopg.errors.FeatureNotSupported as error:
            pytest.skip(f"NOT TESTED in another order: {error}")
    try:
        dsn = either_postgres.dsn_of(name)
        migrate(dsn, configured={"max_concurrent": 100})
        with Db(dsn) as db:
            assert db.value("SELECT 'ab' < 'a_z' AND 'a_z' < 'ab' COLLATE \"C\"")
            mine = ["ab", "a_z", "a-y", "b"]
            for each in mine:
                db.enqueue(*(f"{each}{i}" for i in range(8)), task_type=each)
            assert db.value("SELECT others_wait(%s)", mine) is False
            assert len(db.claim("w", 1, types=mine, ahead=9).ids) == 10
            for each in mine:
                assert db.value("SELECT others_wait(%s)", [name for name in mine if name != each]) is True
    finally:
        either_postgres.drop_database(name)


def test_others_wait_does_not_read_the_directory(either_postgres: EmbeddedPostgres) -> None:
    dsn = either_postgres.create_database("directory")
    try:
        migrate(dsn, configured={"max_concurrent": 100})
        with Db(dsn) as db, plans.explaining(dsn, "taskgate, public") as explaining:
            flows = f"""
                INSERT INTO flows SELECT flow_id(t.name, 4, 't' || i, '', ''), t.name, 4, 't' || i, '', '', now()
                FROM generate_series(1, {FLOWS // 3}) i, unnest(ARRAY['a_z', 'ab', 'llm']) AS t (name)
            """
            db.run(flows)
            mine = ["llm", "ab", "a_z", "nobody's", "zzz"]
            cost(explaining, mine, False)  # reads the catalogs
            for statistics in ("stale", "fresh"):
                if statistics == "fresh":
                    db.run("ANALYZE flows")
                for types, wait in ((mine, False), (["llm", "ab"], True), (["a_z"], True)):
                    for _ in range(7):
                        found = cost(explaining, types, wait)
                        assert not found.sequential("flows")
                        assert found.indexes("flows") <= {"flows_place"}, found.costliest()
                        assert found.blocks <= 60, found.costliest()
                        read = sum(node["Actual Rows"] * node["Actual Loops"] for _, node in found.nodes("flows"))
                        assert read <= 1, f"{read} entries read"
    finally:
        either_postgres.drop_database("directory")


def cost(connection: psycopg.Connection[tuple[object, ...]], types: list[str], wait: bool) -> plans.Plans:
    """The plans of others_wait as claim plans it."""
    for name in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin"):
        connection.execute(f"SET enable_{name} = off".encode())
    connection.execute("SET plan_cache_mode = force_generic_plan")
    found, rows = plans.run(connection, "SELECT others_wait(%s)", [types])
    assert rows == [(wait,)]
    return found
