"""Tables of millions of rows: finished, expired and pending ones, made in the quickest way that is the same."""

from __future__ import annotations

import sys

from bench.backlog import Connection

CHUNK = 500_000
FINISHED = """
INSERT INTO tasks (task_id, status, task_type, request, result, attempts, seq, claim_token, settled_token, worker_id,
                   created_at, updated_at, started_at, finished_at, expires_at)
SELECT lpad(to_hex(i), 8, '0') || %(tail)s, 'completed', 'noop', '{"n": 1}', 'null', 1, i, i, i, 'bench', t.at, t.at,
       t.at, t.at, %(expires)s::timestamptz
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS i
CROSS JOIN LATERAL (SELECT now() - interval '1 day' + i * interval '1 millisecond') AS t (at)
"""
PENDING = """
INSERT INTO tasks (task_id, status, task_type, request, created_at, updated_at, seq)
SELECT taskgate.new_task_id(), 'pending', 'noop', '{"n": 1}', now(), now(), nextval('taskgate.task_seq')
FROM generate_series(1, %s)
"""
SECONDARY_INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = 'tasks'::regclass AND NOT indisprimary
"""
KEPT, EXPIRED = "-0000-7000-8000-000000000000", "-0000-7000-8000-00000000dead"


def count(connection: Connection, status: str) -> int:
    row = connection.execute("SELECT count(*) FROM tasks WHERE status = %s", [status]).fetchone()
    assert row is not None
    return int(str(row[0]))


def add_finished(connection: Connection, rows: int) -> None:
    """Finished rows up to that many; the indexes are made afterwards. They are kept for a year."""
    there = count(connection, "completed")
    if there >= rows:
        return
    indexes = [(str(name), str(definition)) for name, definition in connection.execute(SECONDARY_INDEXES).fetchall()]
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}".encode())
    _insert_finished(connection, there + 1, rows, KEPT, "2099-01-01")
    for name, definition in indexes:
        _say(f"index {name}")
        connection.execute(definition.encode())
    connection.execute(
        "SELECT setval('taskgate.claim_token_seq', %s + (SELECT last_value FROM taskgate.claim_token_seq)), "
        "setval('taskgate.task_seq', %s + (SELECT last_value FROM taskgate.task_seq))",
        [rows, rows],
    )


def add_expired(connection: Connection, rows: int) -> None:
    """Finished rows whose time has come, beside those that are there."""
    _insert_finished(connection, 1, rows, EXPIRED, "2020-01-01")


def _insert_finished(connection: Connection, begin: int, rows: int, tail: str, expires: str) -> None:
    connection.execute("SET session_replication_role = replica")  # this is the past: no triggers
    for first in range(begin, rows + 1, CHUNK):
        _say(f"{first - 1:,} of {rows:,} finished rows")
        last = min(rows, first + CHUNK - 1)
        connection.execute(FINISHED, {"tail": tail, "expires": expires, "first": first, "last": last})
    connection.execute("SET session_replication_role = origin")


def add_pending(connection: Connection, rows: int) -> None:
    """Pending rows up to that many."""
    missing = rows - count(connection, "pending")
    for done in range(0, max(0, missing), CHUNK):
        _say(f"{done:,} of {missing:,} pending rows")
        connection.execute(PENDING, [min(CHUNK, missing - done)])


def settle(connection: Connection) -> None:
    """As after a quiet night: vacuumed, with statistics, on disk."""
    _say("vacuum")
    connection.execute("VACUUM (FREEZE, ANALYZE) tasks")
    connection.execute("CHECKPOINT")


def _say(what: str) -> None:
    print(f"  … {what}", file=sys.stderr, flush=True)
