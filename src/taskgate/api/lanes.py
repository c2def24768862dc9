"""Bounds on what may hold a database connection for long, so that the others always find one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskgate.api.problems import unavailable

LANE_SECONDS = 3.0
"""So long one waits for a turn behind others."""


class Lanes:
    """`count` turns at once; who waits `seconds` for one in vain gets 503 `busy` with `refusal` as its detail."""

    def __init__(self, count: int, refusal: str, seconds: float = LANE_SECONDS) -> None:
        self._free = asyncio.Semaphore(count)
        self._refusal = refusal
        self._seconds = seconds

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises Problem."""
        if self._free.locked():
            try:
                async with asyncio.timeout(self._seconds):
                    await self._free.acquire()
            except TimeoutError:
                raise unavailable("busy", self._refusal, seconds=1) from None
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()
