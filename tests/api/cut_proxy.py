"""A TCP relay before PostgreSQL that can be cut, and that can lose the replies to what was sent."""

from __future__ import annotations

import asyncio

from tests.relay import Relay


class CutProxy(Relay):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._lose_after: bytes | None = None
        self.lost = asyncio.Event()
        """Set once a reply was lost on purpose."""

    async def restore(self) -> None:
        """Listen again, on the same port."""
        await self._listen()

    async def cut(self) -> None:
        """Reset every connection, refuse new ones."""
        self._close()
        self._reset()

    def lose_reply_to(self, text: bytes) -> None:
        """The next time a client sends `text`: the database gets it, the client gets a closed connection."""
        self._lose_after = text
        self.lost.clear()

    async def passes(self, data: bytes, losing: asyncio.Event, *, asking: bool) -> bool:
        if asking and self._lose_after is not None and self._lose_after in data:
            self._lose_after = None
            losing.set()
        if not asking and losing.is_set():
            # the database has answered, so it has committed
            self.lost.set()
            return False
        return True
