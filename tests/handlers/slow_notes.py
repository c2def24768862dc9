"""Stopping a handler while it writes down what it paid for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from taskgate.testing import MemoryContext


class SlowNotes(MemoryContext):
    """One note in the database takes until the test says so."""

    def __init__(self, slow: str) -> None:
        super().__init__(asyncio.get_running_loop(), "t")
        self._slow = slow
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def _note(self, name: str, note: Coroutine[Any, Any, None]) -> None:
        if name == self._slow and not self.go_on.is_set():
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                note.close()
                raise
        await note

    async def save_checkpoint(self, value: Any) -> None:
        await self._note("checkpoint", super().save_checkpoint(value))

    async def intend(self, account: Any, *, retry: bool) -> None:
        await self._note("intend", super().intend(account, retry=retry))

    async def save_operation(self, operation: Any) -> None:
        await self._note("operation", super().save_operation(operation))

    async def withdraw(self) -> None:
        await self._note("withdraw", super().withdraw())

    def stop(self, running: asyncio.Future[Any], reason: str) -> None:
        self.reason = reason
        running.cancel()


async def stopped(running: asyncio.Future[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await running


def notes(context: MemoryContext) -> list[str]:
    return [name if name != "operation" else str(value.get("closed", "open")) for name, value in context.paid]
