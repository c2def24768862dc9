"""A worker that knows only SQL: the advisory lock, the count, a claim, and a plain UPDATE at the end.

It shares the global limit with every other worker, and knows nothing of tokens, priorities or delays. The statements
are those of PROTOCOL.md's section on such citizens. As a program (SQL_ONLY is its command line) it runs `llm` tasks one
by one, with DATABASE_URL, OPENAI_BASE_URL and TASKGATE_LEASE_SECONDS from the environment, until SIGTERM.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import psycopg

SQL_ONLY = f"python {shlex.quote(os.path.abspath(__file__))}"

LOCK = "SELECT pg_advisory_xact_lock(8386110886273709157)"
RECOVER = """
UPDATE tasks
SET status = CASE WHEN attempts >= 1000 THEN 'failed' ELSE 'pending' END,
    error = CASE WHEN attempts >= 1000 THEN 'worker timeout' ELSE error END,
    locked_until = NULL, updated_at = now()
WHERE status = 'running' AND request IS NOT NULL AND locked_until < now()
"""
COUNT = "SELECT count(*) FROM tasks WHERE status = 'running' AND request IS NOT NULL"
LIMIT = "SELECT max_concurrent FROM taskgate.settings"
CLAIM = """
UPDATE tasks AS t
SET status = 'running', attempts = t.attempts + 1, locked_until = now() + %s * interval '1 second', updated_at = now()
FROM (SELECT task_id FROM tasks WHERE status = 'pending' AND task_type = 'llm' AND request IS NOT NULL
      ORDER BY created_at FOR UPDATE SKIP LOCKED LIMIT 1) AS next_task
WHERE t.task_id = next_task.task_id
RETURNING t.task_id, t.request
"""
COMPLETE = """
UPDATE tasks SET status = 'completed', result = %s::jsonb, error = NULL, locked_until = NULL, updated_at = now()
WHERE task_id = %s
"""
PAUSE_SECONDS = 0.1


class Citizen:
    """One such worker on a connection of its own."""

    def __init__(self, dsn: str, lease: float) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        self._lease = lease

    def claim(self) -> tuple[str, dict[str, Any]] | None:
        """A task that is its own now; None when the limit is reached or nothing waits."""
        with self._connection.transaction():
            self._connection.execute(LOCK)
            self._connection.execute(RECOVER)
            running = self._connection.execute(COUNT).fetchone()
            limit = self._connection.execute(LIMIT).fetchone()
            if running is None or limit is None or running[0] >= limit[0]:
                return None
            return self._connection.execute(CLAIM, [self._lease]).fetchone()

    def complete(self, task_id: str, result: Any) -> bool:
        """Whether the row was changed: a late write is refused."""
        return self._connection.execute(COMPLETE, [json.dumps(result), task_id]).rowcount == 1

    def close(self) -> None:
        self._connection.close()


def main() -> int:
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    citizen = Citizen(os.environ["DATABASE_URL"], float(os.environ.get("TASKGATE_LEASE_SECONDS", "60")))
    while not stopping:
        claimed = citizen.claim()
        if claimed is None:
            time.sleep(PAUSE_SECONDS)
            continue
        task_id, request = claimed
        try:
            answer = _ask(request)
        except (OSError, urllib.error.URLError) as error:
            print(f"{task_id}: {error}", file=sys.stderr)  # its lease runs out, and somebody tries again
            continue
        citizen.complete(task_id, {"text": answer["choices"][0]["message"]["content"]})
    return 0


def _ask(request: dict[str, Any]) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": request["prompt"]}]}
    call = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(call) as response:
        return json.load(response)


if __name__ == "__main__":
    sys.exit(main())
