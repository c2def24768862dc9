"""The calls of media, each one round trip: see functions/media_*.sql for what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from taskgate.protocol.calls import Executor
from taskgate.protocol.session import query as named_query
from taskgate.protocol.version import function_schema

CHUNK_BYTES = 262_144
"""Every chunk in the database has so many bytes but the last."""

POSTGRES = "postgres"
"""The store of what is in the database itself."""


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """One medium of a task. `store` says where the bytes are; `object` is their key there, None in the database."""

    mime: str
    blob: int
    store: str
    object: str | None
    sha256: str
    """In hex."""
    bytes: int


class MediaCalls:
    """The calls, for one installation (`schema` is where the tasks table lives)."""

    def __init__(self, executor: Executor, schema: str = "public") -> None:
        self._db = executor
        self._f = function_schema(schema)

    async def begin(self, store: str = POSTGRES, key: str | None = None) -> int:
        """The id of a new upload."""
        return int(await self._db.fetchval(f"SELECT {self._f}.media_begin($1, $2)", store, key))

    async def append(self, blob: int, n: int, chunks: Sequence[bytes]) -> str:
        """`done` or `gone`. Without chunks: a sign of life."""
        return str(await self._db.fetchval(f"SELECT {self._f}.media_append($1, $2, $3)", blob, n, list(chunks)))

    async def attach(self, task_id: str, token: int, name: str, blob: int, *, sha256: str, size: int, mime: str) -> str:
        """`done`, `shared`, `stale`, `incomplete` or `gone`."""
        return str(
            await self._db.fetchval(
                f"SELECT {self._f}.media_attach($1, $2, $3, $4, $5, $6, $7)",
                task_id,
                token,
                name,
                blob,
                sha256,
                size,
                mime,
            )
        )

    async def discard(self, blob: int) -> None:
        await self._db.execute(f"SELECT {self._f}.media_discard($1)", blob)

    async def collect(
        self, store: str = POSTGRES, *, grace: float = 3600.0, limit: int = 20
    ) -> list[tuple[int, str | None]]:
        """(blob, object) of what nothing refers to for `grace` seconds: deleted, or yours to delete and discard."""
        rows = await self._db.fetch(
            f"SELECT blob, object FROM {self._f}.media_collect($1, $2, $3)", store, timedelta(seconds=grace), limit
        )
        return [(row["blob"], row["object"]) for row in rows]

    async def find(self, task_id: str, name: str, *, tenant: str | None = None) -> StoredMedia | None:
        row = await self._db.fetchrow(named_query("media"), task_id, name, tenant)
        return None if row is None else StoredMedia(**dict(row))

    async def chunks(self, blob: int, first: int, end: int) -> list[bytes]:
        """Chunks `first` to `end` - 1."""
        rows = await self._db.fetch(named_query("media_chunks"), blob, first, end)
        return [row["data"] for row in rows]
