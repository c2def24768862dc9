"""Notifications: tasks came, or one was cancelled. Nobody depends on them; they only save waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from taskgate.protocol.calls import Calls

SPARE_SECONDS = 0.005
"""Whoever was called first should have the task by then."""


class Listener:
    """Listens on a connection of the lease keeper's loop.

    `ready` and `called` are called on the worker's loop: every worker was told that there may be something to claim, or
    this one alone. `cancelled` gets the task id, where the notification arrives.
    """

    def __init__(
        self,
        worker_loop: asyncio.AbstractEventLoop,
        types: list[str],
        schema: str,
        *,
        ready: Callable[[], None],
        called: Callable[[], None],
        cancelled: Callable[[str], None],
    ) -> None:
        self._worker_loop = worker_loop
        self._types = types
        self._schema = schema
        self._ready = ready
        self._called = called
        self._cancelled = cancelled
        self._connection: object = None
        self.number = 0
        """By which this process is woken alone; 0 while it does not listen."""

    async def attach(self, connection: Any) -> None:
        """Listen on a fresh connection; what was missed before counts as a notification."""
        calls = Calls(connection, self._schema)
        await connection.add_listener(calls.ready_channel, self._on_ready)
        await connection.add_listener(calls.cancel_channel, self._on_cancel)
        number = await calls.listen_alone(self._types)
        await connection.add_listener(calls.own_channel(number), self._on_called)
        connection.add_termination_listener(self._on_lost)
        self._connection, self.number = connection, number
        self._worker_loop.call_soon_threadsafe(self._ready)

    def _on_ready(self, *_: object) -> None:
        self._worker_loop.call_soon_threadsafe(self._ready)

    def _on_called(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == "spare":
            asyncio.get_running_loop().call_later(SPARE_SECONDS, self._call)
        else:
            self._call()

    def _call(self) -> None:
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._worker_loop.call_soon_threadsafe(self._called)

    def _on_cancel(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._cancelled(str(payload))

    def _on_lost(self, connection: object) -> None:
        if connection is self._connection:  # else a newer one listens already
            self.number = 0
