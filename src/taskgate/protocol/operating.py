"""Upkeep and limits."""

from __future__ import annotations

from taskgate.protocol.session import Session


class OperatorCalls(Session):
    """Upkeep and limits."""

    async def recover(self) -> int:
        """Take back overdue tasks; how many were."""
        return int(await self._db.fetchval(f"SELECT {self._f}.recover()"))

    async def purge(self, batch: int = 1000) -> int:
        """Delete up to `batch` expired final tasks; how many were."""
        return int(await self._db.fetchval(f"SELECT {self._f}.purge($1)", batch))

    async def set_limit(self, limit: int) -> None:
        await self._db.execute(f"SELECT {self._f}.set_limit($1)", limit)

    async def set_group_limit(self, scope: str, name: str, limit: int | None) -> None:
        """Limit one `type`, `model`, `upstream` or `tenant`; name `*`: each one that has no limit of its own."""
        await self._db.execute(f"SELECT {self._f}.set_limit($1, $2, $3)", scope, name, limit)

    async def set_rate(
        self,
        scope: str,
        name: str,
        *,
        requests: float | None,
        requests_burst: float | None = None,
        tokens: float | None = None,
        tokens_burst: float | None = None,
        tokens_default: int | None = None,
    ) -> None:
        """Limit how many calls of a group start a minute, and how many tokens they take; see functions/limits.sql."""
        await self._db.execute(
            f"SELECT {self._f}.set_rate($1, $2, $3, $4, $5, $6, $7)",
            scope,
            name,
            requests,
            requests_burst,
            tokens,
            tokens_burst,
            tokens_default,
        )

    async def remove_limit(self, scope: str, name: str) -> bool:
        """Take a group's limits away; whether it had any."""
        return bool(await self._db.fetchval(f"SELECT {self._f}.remove_limit($1, $2)", scope, name))
