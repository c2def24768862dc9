"""The thin typed client of the SQL functions: the only module of taskgate that names SQL.

Every method is one round trip. It takes any asyncpg connection or pool; inside a transaction of the caller's
it is part of that transaction. Errors of the database pass through as asyncpg raises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import asyncpg

from taskgate.protocol.version import function_schema


class Executor(Protocol):
    """What a connection and a pool have in common."""

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...


@dataclass(slots=True)  # not frozen: that would triple what it costs to make one
class NewTask:
    """One task to enqueue. `request` is JSON text; `keep_order` keeps its key order, which jsonb would lose.

    `options` is JSON text of an object: priority, delay_seconds, run_at, start_within_seconds, timeout_seconds,
    max_attempts, metadata; and tenant and traceparent, which go before those of the call.
    """

    task_id: str
    task_type: str
    request: str
    keep_order: bool = False
    options: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that this worker holds from now on, under `token`."""

    task_id: str
    token: int
    task_type: str
    request: str
    """JSON text, in the caller's key order."""
    attempt: int
    max_attempts: int
    timeout_seconds: float | None
    tenant: str
    metadata: str | None
    checkpoint: str | None
    traceparent: str | None
    waited_seconds: float
    """From when the task was due to this claim."""
    again: bool
    """True when an earlier claim's answer was lost and this is the same claim once more."""


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """Tasks, or why there are none: `busy`, `full`, `empty` or `unsure` (see functions/claim.sql)."""

    outcome: str
    tasks: list[ClaimedTask]
    next_due: float | None
    """Seconds until the next delayed task falls due, where known."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed. `delay` None means backoff; `info` is JSON text."""

    task_id: str
    token: int
    error: str
    code: str
    info: str | None = None
    retry: bool = False
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """An attempt given back without cost. Code `throttled` counts against the throttle budget."""

    task_id: str
    token: int
    delay: float = 0.0
    code: str = "released"
    reason: str | None = None
    info: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker tells of itself. `types` maps a task type to (JSON Schema text or None, description)."""

    worker_id: str
    language: str
    version: str
    host: str
    pid: int
    slots: int
    types: dict[str, tuple[str | None, str]]


INLINE_BYTES = 65_536
"""Bodies that a claim sends while it holds the lock: what fits the buffers of a socket nobody reads from."""

Verdicts = dict[tuple[str, int], str]
"""(task_id, token) → `done`, `already`, `stale` or, for a renewal, `cancel` or `busy`."""


@cache
def _query(name: str) -> str:
    return (files("taskgate.protocol") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def _interval(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _verdicts(rows: Sequence[Any]) -> Verdicts:
    return {(row[0], row[1]): row[2] for row in rows}


def server_settings(schema: str, application_name: str) -> dict[str, str]:
    """Session settings that the read queries and functions count on; for `asyncpg.connect(server_settings=…)`."""
    return {
        "search_path": f"{function_schema(schema)}, {schema}",
        "application_name": application_name,
        "jit": "off",
    }


class Calls:
    """The calls, for one installation (`schema` is where the tasks table lives)."""

    def __init__(self, executor: Executor, schema: str = "public") -> None:
        self._db = executor
        self._f = function_schema(schema)
        self._schema = schema

    # producers

    async def enqueue(self, tasks: Sequence[NewTask], *, tenant: str = "", traceparent: str | None = None) -> list[str]:
        """Write tasks in one statement: all or nothing. Answers `done` or `exists` (id taken) for each, in order."""
        rows = await self._db.fetch(
            f"SELECT outcome FROM {self._f}.enqueue($1, $2, $3, $4, $5, $6, $7)",
            [task.task_id for task in tasks],
            [task.task_type for task in tasks],
            [task.request for task in tasks],
            [task.keep_order for task in tasks] if any(task.keep_order for task in tasks) else None,
            [task.options for task in tasks] if any(task.options is not None for task in tasks) else None,
            tenant,
            traceparent,
        )
        return [row[0] for row in rows]

    async def cancel(self, task_id: str, *, tenant: str | None = None) -> str:
        """`cancelled`, `cancelling`, `already`, `finished` or `not_found`."""
        return str(await self._db.fetchval(f"SELECT {self._f}.cancel($1, $2)", task_id, tenant))

    async def retry(self, task_id: str, *, tenant: str | None = None) -> str:
        """`done`, `not_failed` or `not_found`."""
        return str(await self._db.fetchval(f"SELECT {self._f}.retry($1, $2)", task_id, tenant))

    async def wait_for_locks(self, seconds: float) -> None:
        """For the rest of this transaction: give up after `seconds` (asyncpg.LockNotAvailableError) at a lock."""
        await self._db.execute("SELECT set_config('lock_timeout', $1, true)", f"{seconds * 1000:.0f}ms")

    # workers

    async def register_worker(self, worker: WorkerInfo) -> None:
        await self._db.execute(
            f"SELECT {self._f}.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            worker.worker_id,
            worker.language,
            worker.version,
            worker.host,
            worker.pid,
            worker.slots,
            list(worker.types),
            [schema for schema, _ in worker.types.values()],
            [description for _, description in worker.types.values()],
        )

    async def forget_worker(self, worker_id: str) -> None:
        await self._db.execute(f"SELECT {self._f}.forget_worker($1)", worker_id)

    async def claim(
        self, worker_id: str, slots: int, held: Sequence[int], lease: float, types: Sequence[str] | None
    ) -> ClaimAnswer:
        """Claim up to `slots` tasks for `lease` seconds. `held` are the tokens this process holds already.

        A token counts as held until the answer to its complete, fail or release is there. Large bodies come in
        a second round trip; when that fails, the next claim has the same tasks again.
        """
        rows = await self._db.fetch(
            f"SELECT * FROM {self._f}.claim($1, $2, $3, $4, $5, $6)",
            worker_id,
            slots,
            list(held),
            timedelta(seconds=lease),
            None if types is None else list(types),
            INLINE_BYTES,
        )
        if rows[0]["task_id"] is None:
            return ClaimAnswer(rows[0]["outcome"], [], _seconds(rows[0]["next_due"]))
        bodies: dict[str, Any] = {row["task_id"]: row for row in rows}
        large = [row for row in rows if row["request"] is None]
        if large:
            fetched = await self._db.fetch(
                f"SELECT * FROM {self._f}.claimed_bodies($1, $2)",
                [row["task_id"] for row in large],
                [row["token"] for row in large],
            )
            bodies |= {row["task_id"]: row for row in fetched}
        return ClaimAnswer(
            "claimed",
            [
                ClaimedTask(
                    task_id=row["task_id"],
                    token=row["token"],
                    task_type=row["task_type"],
                    request=bodies[row["task_id"]]["request"],
                    attempt=row["attempt"],
                    max_attempts=row["max_attempts"],
                    timeout_seconds=row["timeout_seconds"],
                    tenant=row["tenant"],
                    metadata=bodies[row["task_id"]]["metadata"],
                    checkpoint=bodies[row["task_id"]]["checkpoint"],
                    traceparent=row["traceparent"],
                    waited_seconds=_seconds(row["waited"]) or 0.0,
                    again=row["outcome"] == "again",
                )
                for row in rows
                if bodies[row["task_id"]]["request"] is not None  # else it was taken away meanwhile
            ],
            None,
        )

    async def renew(
        self, worker_id: str, held: Sequence[tuple[str, int]], lease: float, *, draining: bool = False
    ) -> Verdicts:
        """Renew leases from now on; with nothing held it is the worker's sign of life."""
        return _verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.renew($1, $2, $3, $4, $5)",
                worker_id,
                [task_id for task_id, _ in held],
                [token for _, token in held],
                timedelta(seconds=lease),
                draining,
            )
        )

    async def complete(self, results: Sequence[tuple[str, int, str]]) -> Verdicts:
        """Write results: (task_id, token, JSON text)."""
        return _verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.complete($1, $2, $3)",
                [task_id for task_id, _, _ in results],
                [token for _, token, _ in results],
                [result for _, _, result in results],
            )
        )

    async def fail(self, failures: Sequence[Failure]) -> Verdicts:
        return _verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.fail($1, $2, $3, $4, $5, $6, $7)",
                [each.task_id for each in failures],
                [each.token for each in failures],
                [each.error for each in failures],
                [each.code for each in failures],
                [each.info for each in failures],
                [each.retry for each in failures],
                [_interval(each.delay) for each in failures],
            )
        )

    async def release(self, releases: Sequence[Release]) -> Verdicts:
        return _verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.release($1, $2, $3, $4, $5, $6)",
                [each.task_id for each in releases],
                [each.token for each in releases],
                [_interval(each.delay) for each in releases],
                [each.code for each in releases],
                [each.reason for each in releases],
                [each.info for each in releases],
            )
        )

    async def checkpoint(
        self, task_id: str, token: int, *, checkpoint: str | None = None, progress: str | None = None
    ) -> str:
        """Save JSON texts with the running attempt. `done` or `stale`."""
        return str(
            await self._db.fetchval(
                f"SELECT {self._f}.checkpoint($1, $2, $3, $4)", task_id, token, checkpoint, progress
            )
        )

    # upkeep

    async def recover(self) -> int:
        """Take back overdue tasks; how many were."""
        return int(await self._db.fetchval(f"SELECT {self._f}.recover()"))

    async def purge(self, batch: int = 1000) -> int:
        """Delete up to `batch` expired final tasks; how many were."""
        return int(await self._db.fetchval(f"SELECT {self._f}.purge($1)", batch))

    async def set_limit(self, limit: int) -> None:
        await self._db.execute(f"SELECT {self._f}.set_limit($1)", limit)

    # readers

    async def await_done(self, seconds: float) -> None:
        """Ask for notifications of finished tasks (channel `done_channel`) for the next seconds."""
        await self._db.execute(f"SELECT {self._f}.await_done($1)", seconds)

    async def schema_version(self) -> int | None:
        """The database's schema version, None when it was never migrated."""
        try:
            value = await self._db.fetchval(f"SELECT version FROM {self._f}.schema_version")
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            return None
        return None if value is None else int(value)

    async def get(
        self,
        task_ids: Sequence[str],
        *,
        tenant: str | None = None,
        with_request: bool = False,
        result_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Records of queries/get.sql by task id; unknown ids are missing.

        A result that takes more than `result_bytes` on disk is left out, and `result_left_out` says so.
        """
        rows = await self._db.fetch(_query("get"), list(task_ids), tenant, with_request, result_bytes)
        return {row["task_id"]: row for row in rows}

    async def page(
        self,
        *,
        tenant: str | None = None,
        status: str | None = None,
        task_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        below: int | None = None,
        limit: int = 50,
        with_bodies: bool = False,
    ) -> list[Any]:
        """A page of tasks, newest first; the last one's `seq` is the cursor (`below`) of the next page."""
        return await self._db.fetch(
            _query("list"),
            tenant,
            status,
            task_type,
            created_after,
            created_before,
            below,
            limit,
            with_bodies,
        )

    async def history(self, task_id: str) -> list[Any]:
        return await self._db.fetch(_query("history"), task_id)

    async def stats(self, tenant: str | None = None) -> Any:
        return await self._db.fetchrow(_query("stats"), tenant)

    async def stats_by_type(self, tenant: str | None = None) -> list[Any]:
        return await self._db.fetch(_query("stats_by_type"), tenant)

    async def workers(self) -> list[Any]:
        return await self._db.fetch(_query("workers"))

    async def types(self) -> list[Any]:
        return await self._db.fetch(_query("types"))

    async def settings(self) -> Any:
        return await self._db.fetchrow(_query("settings"))

    async def lock_holder(self) -> Any:
        return await self._db.fetchrow(_query("lock_holder"))

    async def old_snapshots(self, seconds: float) -> list[Any]:
        return await self._db.fetch(_query("old_snapshots"), seconds)

    async def overdue(self) -> Any:
        return await self._db.fetchrow(_query("overdue"))

    async def server_clock(self) -> datetime:
        """What time it is for the database."""
        now: datetime = await self._db.fetchval(_query("clock"))
        return now

    @property
    def ready_channel(self) -> str:
        return f"{self._f}_ready"

    @property
    def done_channel(self) -> str:
        return f"{self._f}_done"

    @property
    def cancel_channel(self) -> str:
        return f"{self._f}_cancel"
