"""A producer and a worker that know only SQL: the statements of the system that this protocol grew out of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg

TABLE = """
CREATE TABLE IF NOT EXISTS tasks (
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

CREATE INDEX IF NOT EXISTS idx_tasks_pending_created_at
ON tasks (created_at)
WHERE status = 'pending'
  AND task_type IS NOT NULL
  AND request IS NOT NULL;

CREATE INDEX IF NOT EXISTS idx_tasks_running_locked_until
ON tasks (locked_until)
WHERE status = 'running'
  AND request IS NOT NULL;
"""

LOCK = "SELECT pg_advisory_xact_lock(8386110886273709157)"

RECOVER = """
UPDATE tasks
SET status = CASE
        WHEN attempts >= $1::int THEN 'failed'
        ELSE 'pending'
    END,
    error = CASE
        WHEN attempts >= $1::int THEN 'worker timeout'
        ELSE error
    END,
    locked_until = NULL,
    updated_at = now(),
    expires_at = CASE
        WHEN attempts >= $1::int THEN now() + ($2::int * interval '1 second')
        ELSE NULL
    END
WHERE status = 'running'
  AND request IS NOT NULL
  AND locked_until IS NOT NULL
  AND locked_until < now();
"""

COUNT = "SELECT count(*) FROM tasks WHERE status = 'running' AND request IS NOT NULL"

CLAIM = """
WITH next_task AS (
    SELECT task_id
    FROM tasks
    WHERE status = 'pending'
      AND task_type IS NOT NULL
      AND request IS NOT NULL
    ORDER BY created_at
    FOR UPDATE SKIP LOCKED
    LIMIT 1
)
UPDATE tasks AS t
SET status = 'running',
    attempts = t.attempts + 1,
    locked_until = now() + ($1::int * interval '1 second'),
    updated_at = now(),
    expires_at = NULL
FROM next_task
WHERE t.task_id = next_task.task_id
RETURNING t.task_id, t.task_type, t.request::text AS request;
"""

COMPLETE = """
UPDATE tasks
SET status = 'completed', result = $2::jsonb, error = NULL, locked_until = NULL, updated_at = now(),
    expires_at = now() + ($3::int * interval '1 second')
WHERE task_id = $1
"""

FAIL = """
UPDATE tasks
SET status = 'failed', error = $2, locked_until = NULL, updated_at = now(),
    expires_at = now() + ($3::int * interval '1 second')
WHERE task_id = $1
"""

INSERT = "INSERT INTO tasks (task_id, status, task_type, request) VALUES ($1, 'pending', $2, $3::jsonb)"


@dataclass
class OriginWorker:
    """One worker of that system on a connection of its own."""

    connection: psycopg.Connection[Any]
    limit: int = 20
    lease: int = 60
    max_attempts: int = 3
    ttl: int = 3600

    def __post_init__(self) -> None:
        self.connection.autocommit = True
        self._cursor = psycopg.RawCursor(self.connection)

    def claim(self) -> str | None:
        """The id of a task that is this worker's now; None when the limit is reached or nothing waits."""
        with self.connection.transaction():
            self._cursor.execute(LOCK)
            self._cursor.execute(RECOVER, [self.max_attempts, self.ttl])
            row = self._cursor.execute(COUNT).fetchone()
            assert row is not None
            if row[0] >= self.limit:
                return None
            row = self._cursor.execute(CLAIM, [self.lease]).fetchone()
            return None if row is None else str(row[0])

    def complete(self, task_id: str, result: Any = None) -> int:
        """How many rows were changed: 0 when the late write was refused."""
        return self._cursor.execute(COMPLETE, [task_id, json.dumps(result), self.ttl]).rowcount

    def fail(self, task_id: str, error: str) -> int:
        return self._cursor.execute(FAIL, [task_id, error, self.ttl]).rowcount

    def insert(self, task_id: str, task_type: str = "llm", request: Any = None) -> None:
        self._cursor.execute(INSERT, [task_id, task_type, json.dumps(request or {})])

    def close(self) -> None:
        self.connection.close()
