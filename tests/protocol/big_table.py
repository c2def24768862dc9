"""A table as it looks in the middle of a long life: much finished, much waiting, and many dead rows that a
reader with an old snapshot keeps from being removed."""

from __future__ import annotations

from typing import Any

import psycopg

FINISHED = 750_000
CHURNED = 250_000
"""Rows that went pending → running → completed under the pinned snapshot: two dead versions each."""
PENDING = 100_000
FLOW = "flow_id('llm', 4, '', '', '')"

SECONDARY_INDEXES = """
    SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition FROM pg_index
    WHERE indrelid = 'tasks'::regclass AND NOT indisprimary
"""
# Plain inserts and updates as the functions would make them, without the triggers: this is the past.
PAST = "SET session_replication_role = replica"
LATER = "SET session_replication_role = origin"


def fill(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Finished rows, then statistics that know of nothing else, then what is to run."""
    connection.execute("ALTER TABLE tasks SET (autovacuum_enabled = off)")
    connection.execute(PAST)
    indexes = connection.execute(SECONDARY_INDEXES.encode()).fetchall()
    for index in indexes:
        connection.execute(f"DROP INDEX {index['name']}".encode())
    connection.execute(
        f"""
        INSERT INTO tasks (task_id, status, task_type, request, result, attempts, created_at, seq, claim_token,
                           settled_token, started_at, finished_at, expires_at)
        SELECT 'finished-' || lpad(i::text, 9, '0'), 'completed', 'llm', '{{}}', '{{}}', 1,
               now() - interval '1 day', i, i, i, now(), now(), now() + interval '1 day'
        FROM generate_series(1, {FINISHED}) i
    """.encode()
    )
    for index in indexes:
        connection.execute(index["definition"].encode())
    connection.execute("SELECT setval('claim_token_seq', 10000000), setval('task_seq', 10000000)")
    connection.execute("VACUUM ANALYZE tasks")
    connection.execute(
        f"""
        INSERT INTO tasks (task_id, status, task_type, request, created_at, flow, seq, run_at)
        SELECT 'churned-' || lpad(i::text, 9, '0'), 'pending', 'llm', '{{}}', now() - interval '1 hour',
               {FLOW}, 2000000 + i,
               CASE WHEN i % 2 = 0 THEN now() - interval '1 hour' END
        FROM generate_series(1, {CHURNED}) i
    """.encode()
    )
    connection.execute(
        f"""
        INSERT INTO tasks (task_id, status, task_type, request, created_at, flow, seq, run_at)
        SELECT 'pending-' || lpad(i::text, 9, '0'), 'pending', 'llm', '{{}}', now() - interval '1 minute',
               {FLOW}, 3000000 + i,
               CASE WHEN i % 10 = 0 THEN now() - interval '1 minute' + i * interval '1 microsecond' END
        FROM generate_series(1, {PENDING}) i
    """.encode()
    )
    connection.execute(f"INSERT INTO flows VALUES ({FLOW}, 'llm', 4, '', '', '', now())".encode())
    connection.execute(LATER)


def fill_groups(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Type `grouped`: 50,000 flows of 1,000 tenants, and a million tasks of one model in front of them."""
    connection.execute(PAST)
    columns = "task_id, status, task_type, request, tenant, model, priority, seq, flow"
    connection.execute(
        f"""
        INSERT INTO tasks ({columns})
        SELECT 'full-' || i, 'pending', 'grouped', '{{}}', 't' || i % 1000, 'm0', 9, 4000000 + i,
               flow_id('grouped', 9, 't' || i % 1000, '', 'm0')
        FROM generate_series(1, 1000000) i
    """.encode()
    )
    connection.execute(
        f"""
        INSERT INTO tasks ({columns})
        SELECT 'grouped-' || i, 'pending', 'grouped', '{{}}', 't' || i % 1000, 'm' || 1 + i / 1000, 4, 5500000 + i,
               flow_id('grouped', 4, 't' || i % 1000, '', 'm' || 1 + i / 1000)
        FROM generate_series(0, 48999) i
    """.encode()
    )
    connection.execute("""
        INSERT INTO flows
        SELECT DISTINCT flow, task_type, priority, tenant, upstream, model, now() FROM tasks WHERE task_type = 'grouped'
    """)
    connection.execute(LATER)


def churn(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Runs and finishes the churned rows; the reader must hold its snapshot already."""
    connection.execute(PAST)
    connection.execute("""
        UPDATE tasks SET status = 'running', claim_token = seq, attempts = 1, worker_id = 'w', started_at = now(),
            locked_until = now() - interval '10 minutes' WHERE task_id LIKE 'churned-%'
    """)
    connection.execute("""
        UPDATE tasks SET status = 'completed', settled_token = claim_token, locked_until = NULL, finished_at = now(),
            expires_at = now() + interval '1 day', result = '{}' WHERE task_id LIKE 'churned-%'
    """)
    connection.execute(LATER)


def pinned_reader(dsn: str) -> psycopg.Connection[Any]:
    """A reader whose snapshot holds back vacuum."""
    reader: psycopg.Connection[Any] = psycopg.connect(dsn)
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT txid_current_if_assigned(), count(*) FROM pg_class")
    return reader
