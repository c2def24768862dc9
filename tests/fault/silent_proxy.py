"""A TCP relay that can turn into a black hole: connections stay open, and nothing comes through either way."""

from __future__ import annotations

import asyncio

from tests.relay import Relay


class SilentProxy(Relay):
    def __init__(self, target: str, port: int = 0) -> None:
        super().__init__(target, port)
        self._open = asyncio.Event()
        self._open.set()

    def swallow(self) -> None:
        """From now on nothing gets through, and nobody is told."""
        self._open.clear()

    def restore(self) -> None:
        """Let new connections through; those that were open are reset, as after a failover."""
        self._reset()
        self._open.set()

    async def before_connecting(self) -> None:
        await self._open.wait()

    async def passes(self, data: bytes, losing: asyncio.Event, *, asking: bool) -> bool:
        if not self._open.is_set():
            await asyncio.Event().wait()  # swallowed, and so is everything after it
        return True
