"""The database as a case sees it: tasks in, rows out, and a foreign holder that takes tasks by the functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import asyncpg

from conformance.workers.cases import TaskIn
from conformance.workers.polling import NotAsExpected
from taskgate.protocol.calls import Calls, NewTask, server_settings

HOLDER = "conformance:holder"
HOLDER_LEASE_SECONDS = 600.0
FLEET_SETTINGS = {
    "MAX_CONCURRENT_TASKS": "max_concurrent",
    "TASKGATE_MAX_ATTEMPTS": "max_attempts",
    "TASKGATE_MAX_THROTTLE_SECONDS": "max_throttle",
}

ROWS = """
SELECT t.task_id, t.status, t.result, t.error, t.error_code, t.error_info, t.attempts, t.releases,
       t.worker_id IS NOT NULL AS held, t.claim_token, extract(epoch FROM t.locked_until)::float8 AS locked_until,
       extract(epoch FROM t.started_at - t.run_at)::float8 AS started_after_due,
       extract(epoch FROM t.started_at - t.created_at)::float8 AS started_after_created,
       a.attempts_told,
       extract(epoch FROM t.run_at - a.last_end)::float8 AS delay
FROM tasks t
LEFT JOIN LATERAL (
    SELECT json_agg(json_build_object('outcome', a.outcome, 'error', a.error, 'error_code', a.error_code,
                                      'attempt', a.attempt, 'info', a.error_info, 'operation', a.operation,
                                      'account', a.account, 'intent', a.submit_intent_at IS NOT NULL)
                    ORDER BY a.token) AS attempts_told,
           max(a.finished_at) AS last_end
    FROM task_attempts a WHERE a.task_id = t.task_id
) AS a ON true
"""


class Store:
    """One database of one case."""

    def __init__(self, connection: asyncpg.Connection[Any], schema: str) -> None:
        self._db = connection
        self.calls = Calls(connection, schema)
        self._held: dict[str, int] = {}

    @classmethod
    async def open(cls, dsn: str, schema: str = "public") -> Store:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            dsn, server_settings=server_settings(schema, "conformance")
        )
        return cls(connection, schema)

    async def close(self) -> None:
        self._db.terminate()

    async def configure(self, settings: dict[str, str | int | float]) -> None:
        """Write the fleet-wide ones among the settings to the database, as migrate would."""
        values = {ours: float(settings[name]) for name, ours in FLEET_SETTINGS.items() if name in settings}
        whole = {name: int(value) if name != "max_throttle" else value for name, value in values.items()}
        for name, value in whole.items():
            await self._db.execute(
                f"UPDATE settings SET {name} = {'$1' if name != 'max_throttle' else 'make_interval(secs => $1)'}", value
            )

    async def enqueue(self, tasks: Iterable[TaskIn], images: str) -> None:
        new = [
            NewTask(
                task.name,
                task.type,
                json.dumps(task.request if task.request is not None else {"prompt": f"This is {task.name}."}).replace(
                    "${images}", images
                ),
                keep_order=task.keep_order,
                options=json.dumps(task.options) if task.options else None,
            )
            for task in tasks
        ]
        if new and set(await self.calls.enqueue(new)) != {"done"}:
            raise NotAsExpected("a task could not be enqueued")

    async def apply_upstreams(self, upstreams: list[dict[str, Any]], provider: str) -> None:
        await self.calls.apply_upstreams(json.dumps(upstreams).replace("${provider}", provider))

    async def rows(self) -> dict[str, dict[str, Any]]:
        """Every task by its name, with what is told of its attempts."""
        found = {}
        for record in await self._db.fetch(ROWS):
            row = dict(record)
            for name in ("result", "error_info", "attempts_told"):
                row[name] = None if row[name] is None else json.loads(row[name])
            row["attempts_told"] = row["attempts_told"] or []
            found[str(row["task_id"])] = row
        return found

    async def claim_calls(self) -> int:
        """How often claim was called so far, at least: the statistics of functions may be seconds late."""
        counted = await self._db.fetchval(
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'claim'"
        )
        idle_since = await self._db.fetchval(
            r"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
            r" AND query ~ '\mclaim\(' AND pid <> pg_backend_pid()"
        )
        return max(int(counted), int(idle_since))

    async def workers(self, *, draining: bool) -> int:
        """How many workers are registered, or drain."""
        return sum(record["draining"] or not draining for record in await self.calls.workers())

    async def set_schema_version(self, version: int) -> None:
        await self._db.execute("UPDATE schema_version SET version = $1", version)

    async def recovered(self, name: str) -> bool:
        """Recover what is overdue; whether that task is held by nobody then."""
        await self.calls.recover()
        status = await self._db.fetchval("SELECT status FROM tasks WHERE task_id = $1", name)
        return bool(status != "running")

    async def take(self, name: str) -> bool:
        """Claim for the foreign holder; whether it was that task. Raises NotAsExpected when it was another."""
        answer = await self.calls.claim(HOLDER, 1, list(self._held.values()), HOLDER_LEASE_SECONDS, ["llm"])
        if not answer.tasks:
            return False
        if answer.tasks[0].task_id != name:
            raise NotAsExpected(f"the holder was given {answer.tasks[0].task_id!r} instead of {name!r}")
        self._held[name] = answer.tasks[0].token
        return True

    async def finish(self, name: str, result: Any) -> str:
        """The holder's result; what the database says of it."""
        token = self._held.pop(name)
        verdicts = await self.calls.complete([(name, token, json.dumps(result))])
        return verdicts[name, token]

    async def still_held(self, name: str) -> str | None:
        """None while the row stands as the holder's claim left it."""
        row = (await self.rows())[name]
        if row["status"] == "running" and row["claim_token"] == self._held[name]:
            return None
        return f"{name} was taken from the worker that holds it: it is {row['status']}, result {row['result']!r}"
