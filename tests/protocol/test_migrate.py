"""migrate: fresh, twice, at once, beside others, and in bad company."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from taskgate.protocol.migrate import MigrationError, migrate
from taskgate.protocol.version import SCHEMA_VERSION
from tests.protocol import origin as origin_statements
from tests.protocol.tools import Background, Db

SHAPE = """
    SELECT 'column', table_schema, table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_name NOT LIKE '%yoyo%'
    UNION ALL SELECT 'index', schemaname, tablename, indexname, indexdef FROM pg_indexes
    WHERE schemaname !~ '^pg_' AND tablename NOT LIKE '%yoyo%'
    UNION ALL SELECT 'trigger', event_object_schema, event_object_table, trigger_name, action_statement
    FROM information_schema.triggers
    UNION ALL SELECT 'schema', nspname, '', '', '' FROM pg_namespace WHERE nspname !~ '^pg_'
    ORDER BY 1, 2, 3, 4, 5
"""


def shape(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(SHAPE.encode()).fetchall()


def test_twice_changes_nothing(empty_database: str) -> None:
    assert migrate(empty_database, configured={"max_concurrent": 7}) == SCHEMA_VERSION
    first = shape(empty_database)
    with Db(empty_database) as db:
        db.set_limit(3)
    migrate(empty_database, configured={"max_concurrent": 7})
    assert shape(empty_database) == first
    with Db(empty_database) as db:
        assert db.value("SELECT max_concurrent FROM settings") == 3, "a limit set live survives the same setting"
        migrate(empty_database, configured={"max_concurrent": 9})
        assert db.value("SELECT max_concurrent FROM settings") == 9


def test_what_is_not_set_is_left_alone(empty_database: str) -> None:
    said: list[str] = []

    def run(**configured: float) -> list[str]:
        said.clear()
        migrate(empty_database, configured=configured, say=said.append)
        return [line for line in said if "→" in line]

    assert run() == []
    with Db(empty_database) as db:
        assert db.value("SELECT max_concurrent FROM settings") == 20, "the default"
        assert run(max_concurrent=8, max_attempts=5) == [
            "limit 20 → 8, from MAX_CONCURRENT_TASKS",
            "attempts a task 3 → 5, from TASKGATE_MAX_ATTEMPTS",
        ]
        db.set_limit(200)
        assert run() == []
        assert run(max_attempts=5) == []
        assert run(max_concurrent=8) == [], "migrate has seen that before"
        assert db.value("SELECT max_concurrent FROM settings") == 200
        assert run(max_concurrent=9) == ["limit 200 → 9, from MAX_CONCURRENT_TASKS"]
        assert db.value("SELECT max_attempts FROM settings") == 5


def test_several_at_once(empty_database: str) -> None:
    calls = [Background(lambda: migrate(empty_database, configured={"max_concurrent": 5})) for _ in range(4)]
    assert [call.result(120) for call in calls] == [SCHEMA_VERSION] * 4
    with Db(empty_database) as db:
        assert db.enqueue("a") == ["done"]
        assert db.claim().ids == ["a"]
        assert db.value("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0


def test_a_second_schema_beside_the_first(empty_database: str) -> None:
    migrate(empty_database)
    migrate(empty_database, schema="second")
    with Db(empty_database) as first, Db(empty_database, schema="second", functions="taskgate_second") as second:
        first.enqueue("a")
        second.enqueue("b")
        assert first.value("SELECT lock_key()") != second.value("SELECT lock_key()")
        with second.connection.transaction():
            assert second.claim().ids == ["b"]
            assert first.claim().ids == ["a"], "neither waits for the other"
        first.set_limit(0)
        second.enqueue("c")
        assert second.claim("v").ids == ["c"]
        assert first.value("SELECT count(*) FROM public.tasks") == 1
        second.run(
            "INSERT INTO second.tasks (task_id, status, task_type, request) VALUES ('d', 'pending', 'llm', '{}')"
        )
        assert second.claim("u").ids == ["d"]


def test_a_newer_schema_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE taskgate.schema_version SET version = version + 1")
    before = shape(database)
    with pytest.raises(MigrationError, match="upgrade taskgate"):
        migrate(database)
    assert shape(database) == before


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("CREATE TABLE tasks (id serial PRIMARY KEY, title text)", "lacks task_id text"),
        (origin_statements.TABLE.replace("attempts INTEGER NOT NULL DEFAULT 0,", ""), "lacks attempts integer"),
        (origin_statements.TABLE.replace("request JSONB", "request JSON"), "lacks request jsonb"),
        (origin_statements.TABLE.replace("TEXT PRIMARY KEY", "TEXT"), "not its primary key"),
        (
            origin_statements.TABLE + "INSERT INTO tasks (task_id, status) VALUES ('a', 'cancelled')",
            "unknown status 'cancelled'",
        ),
    ],
)
def test_somebody_else_s_table_is_refused_and_nothing_changed(empty_database: str, table: str, words: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(table.encode())
    before = shape(empty_database)
    with pytest.raises(MigrationError, match=words):
        migrate(empty_database)
    assert shape(empty_database) == before


def test_what_was_cut_short_is_finished(database: str) -> None:
    """Killed after the changes and before they were noted; and in the middle of building an index."""
    wanted = shape(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM taskgate._yoyo_migration")
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.idx_tasks_ready'::regclass"
        )
        connection.execute("DROP INDEX public.idx_tasks_due")
    migrate(database)
    assert shape(database) == wanted
    with Db(database) as db:
        assert db.value("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0


def test_a_user_id_without_a_name_can_migrate(empty_database: str) -> None:
    """As in a container that runs under any user id: no LOGNAME, and pwd knows nothing of it."""
    program = (
        "import pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "from taskgate.protocol.migrate import migrate\n"
        "migrate(sys.argv[1])\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, empty_database], check=True, timeout=60, env={"PATH": os.environ["PATH"]}
    )
