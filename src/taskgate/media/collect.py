"""Deletes what no task refers to any more. Safe beside any number of others that do the same."""

from __future__ import annotations

from taskgate.media.backend import Backend
from taskgate.protocol.media import POSTGRES, MediaCalls

GRACE_SECONDS = 3600.0
"""How long content stays without a reference: downloads under way end, and uploads may stand still."""
BATCH = 20


async def collect_media(
    calls: MediaCalls, store: str, backend: Backend | None, *, grace: float = GRACE_SECONDS, batch: int = BATCH
) -> int:
    """How many contents were deleted, of `store` and of the database. Raises StoreFailed: the rest comes next time."""
    total = await _of_database(calls, grace, batch)
    while backend is not None and store != POSTGRES:
        found = await calls.collect(store, grace=grace, limit=batch)
        for blob, key in found:
            assert key is not None
            await backend.delete(key)
            await calls.discard(blob)
        total += len(found)
        if len(found) < batch:
            break
    return total


async def _of_database(calls: MediaCalls, grace: float, batch: int) -> int:
    total = 0
    while True:
        found = await calls.collect(grace=grace, limit=batch)
        total += len(found)
        if len(found) < batch:
            return total
