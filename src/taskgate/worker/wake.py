"""Notifications: tasks came, or one was cancelled. Nobody depends on them; they only save waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from taskgate.protocol.calls import Calls


class Listener:
    """Listens on a connection of the lease keeper's loop.

    `ready` is called on the worker's loop; `cancelled` gets the task id, where the notification arrives.
    """

    def __init__(
        self,
        worker_loop: asyncio.AbstractEventLoop,
        *,
        ready: Callable[[], None],
        cancelled: Callable[[str], None],
    ) -> None:
        self._worker_loop = worker_loop
        self._ready = ready
        self._cancelled = cancelled
        self.calls: Calls | None = None

    async def attach(self, connection: Any) -> None:
        """Listen on a fresh connection; what was missed before counts as a notification."""
        assert self.calls is not None
        await connection.add_listener(self.calls.ready_channel, self._on_ready)
        await connection.add_listener(self.calls.cancel_channel, self._on_cancel)
        self._worker_loop.call_soon_threadsafe(self._ready)

    def _on_ready(self, *_: object) -> None:
        self._worker_loop.call_soon_threadsafe(self._ready)

    def _on_cancel(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._cancelled(str(payload))
