"""The read queries, and the names of the channels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from taskgate.protocol.session import Session, query


class ReaderCalls(Session):
    """The read queries, and the names of the channels."""

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
        rows = await self._db.fetch(query("get"), list(task_ids), tenant, with_request, result_bytes)
        return {row["task_id"]: row for row in rows}

    async def waiting(self, task_id: str) -> Any:
        """The record of queries/waiting.sql: what a pending task waits for; None if it is not pending."""
        return await self._db.fetchrow(query("waiting"), task_id)

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
            query("list"),
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
        return await self._db.fetch(query("history"), task_id)

    async def stats(self, tenant: str | None = None) -> Any:
        return await self._db.fetchrow(query("stats"), tenant)

    async def stats_by_type(self, tenant: str | None = None) -> list[Any]:
        return await self._db.fetch(query("stats_by_type"), tenant)

    async def due_by_type(self) -> list[Any]:
        """Records of queries/due_by_type.sql."""
        return await self._db.fetch(query("due_by_type"))

    async def identity(self) -> str | None:
        """A hash of which cluster, database and schema this is; None where the server does not let us know."""
        try:
            value: str = await self._db.fetchval(query("identity"), self._f)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError):
            return None
        return value

    async def workers(self) -> list[Any]:
        return await self._db.fetch(query("workers"))

    async def upstreams(self) -> list[Any]:
        """Records of queries/upstreams.sql."""
        return await self._db.fetch(query("upstreams"))

    async def apply_upstreams(self, upstreams: str) -> list[tuple[str, str]]:
        """Make the table what this JSON array says: (name, `added` | `changed` | `same` | `removed`) each."""
        rows = await self._db.fetch(f"SELECT * FROM {self._f}.apply_upstreams($1)", upstreams)
        return [(row[0], row[1]) for row in rows]

    async def types(self) -> list[Any]:
        return await self._db.fetch(query("types"))

    async def settings(self) -> Any:
        return await self._db.fetchrow(query("settings"))

    async def limits(self) -> list[Any]:
        """Records of queries/limits.sql."""
        return await self._db.fetch(query("limits"))

    async def cooldowns(self) -> list[Any]:
        """Records of queries/cooldowns.sql."""
        return await self._db.fetch(query("cooldowns"))

    async def lock_holder(self) -> Any:
        return await self._db.fetchrow(query("lock_holder"))

    async def old_snapshots(self, seconds: float) -> list[Any]:
        return await self._db.fetch(query("old_snapshots"), seconds)

    async def overdue(self) -> Any:
        return await self._db.fetchrow(query("overdue"))

    async def server_clock(self) -> datetime:
        """What time it is for the database."""
        now: datetime = await self._db.fetchval(query("clock"))
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
