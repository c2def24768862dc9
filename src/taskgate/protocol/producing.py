"""The calls of whoever hands tasks in or takes them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from taskgate.protocol.records import (
    NewTask,
    Remembered,
)
from taskgate.protocol.session import Session, query

FEW = 8
"""So many tasks are worth a second commit: workers hear of them sooner. Where more come, it slows all down."""


class ProducerCalls(Session):
    """The calls of whoever hands tasks in or takes them back."""

    async def enqueue(self, tasks: Sequence[NewTask], *, tenant: str = "", traceparent: str | None = None) -> list[str]:
        """Write tasks in one statement: all or nothing. Answers `done` or `exists` (id taken) for each, in order."""
        rows = await self._db.fetch(
            f"SELECT outcome FROM {self._f}.enqueue($1, $2, $3, $4, $5, $6, $7)", *_arrays(tasks), tenant, traceparent
        )
        return [row[0] for row in rows]

    async def enqueue_and_flush(self, tasks: Sequence[NewTask]) -> list[str]:
        """The same in a transaction of its own, whose tasks are visible to workers before they are on disk.

        They are on disk when this returns. The ids must be new: when the database cancels the call behind its commit,
        they tell that the tasks are written. Raises TimeoutError when it cannot be asked for that.
        """
        try:
            outcomes: list[str] = await self._db.fetchval(
                f"CALL {self._f}.enqueue_and_flush($1, $2, $3, $4, $5)", *_arrays(tasks)
            )
        except asyncpg.QueryCanceledError:
            try:
                if await self._db.fetchval(query("written"), [task.task_id for task in tasks]):
                    return await self.enqueue(tasks)
            except asyncpg.PostgresError as error:
                raise TimeoutError("cancelled, and nobody knows when") from error
            raise
        return outcomes

    async def submit(self, tasks: Sequence[NewTask]) -> list[str]:
        """`enqueue_and_flush` for a few tasks, `enqueue` for more: the faster one."""
        return await (self.enqueue_and_flush(tasks) if len(tasks) <= FEW else self.enqueue(tasks))

    async def enqueue_once(
        self, task: NewTask, key: str, fingerprint: str, *, tenant: str = ""
    ) -> tuple[str, str, str | None]:
        """Write one task under an idempotency key: its id, `done`, `exists`, `replayed` or `mismatch`, its status."""
        row = await self._db.fetchrow(
            f"SELECT task_id, outcome, status FROM {self._f}.enqueue_once($1, $2, $3, $4, $5, $6, $7, $8)",
            key,
            fingerprint,
            task.task_id,
            task.task_type,
            task.request,
            task.keep_order,
            task.options,
            tenant,
        )
        return row[0], row[1], row[2]

    async def remember(
        self, keys: Sequence[str], fingerprints: Sequence[str], task_ids: Sequence[str], *, tenant: str = ""
    ) -> dict[str, Remembered]:
        """Take idempotency keys for tasks that this transaction is about to enqueue; one element a task."""
        rows = await self._db.fetch(
            f"SELECT key, outcome, task_ids, statuses FROM {self._f}.remember($1, $2, $3, $4)",
            tenant,
            list(keys),
            list(fingerprints),
            list(task_ids),
        )
        return {row[0]: Remembered(row[1], list(row[2]), list(row[3] or ())) for row in rows}

    async def cancel(self, task_id: str, *, tenant: str | None = None) -> str:
        """`cancelled`, `cancelling`, `waiting`, `already`, `finished` or `not_found`."""
        return str(await self._db.fetchval(f"SELECT {self._f}.cancel($1, $2)", task_id, tenant))

    async def retry(self, task_id: str, *, tenant: str | None = None) -> str:
        """`done`, `not_failed` or `not_found`."""
        return str(await self._db.fetchval(f"SELECT {self._f}.retry($1, $2)", task_id, tenant))

    async def wait_for_locks(self, seconds: float) -> None:
        """For the rest of this transaction: give up after `seconds` (asyncpg.LockNotAvailableError) at a lock."""
        await self._db.execute("SELECT set_config('lock_timeout', $1, true)", f"{seconds * 1000:.0f}ms")


def _arrays(tasks: Sequence[NewTask]) -> tuple[list[Any] | None, ...]:
    """The first five parameters of enqueue."""
    return (
        [task.task_id for task in tasks],
        [task.task_type for task in tasks],
        [task.request for task in tasks],
        [task.keep_order for task in tasks] if any(task.keep_order for task in tasks) else None,
        [task.options for task in tasks] if any(task.options is not None for task in tasks) else None,
    )
