"""A bound on how long a client may take to send a request's head: uvicorn bounds only the pause between requests.

The body has its own (`http.BODY_SECONDS`). Needs httptools.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taskgate.api.onewrite import OneWrite

HEADER_SECONDS = 60.0


class DeadlineProtocol(HttpToolsProtocol):
    """Closes a connection whose next request line and headers are not complete after HEADER_SECONDS."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self.cycle.transport = OneWrite(self.transport, self.cycle)  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # which ends the pause between requests, also for a stray line break
        if self._in_head or self.cycle.response_complete:
            self._arm()
        else:
            self._disarm()

    def _arm(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
