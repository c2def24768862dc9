"""Sends a response's head and body in one packet: uvicorn writes them apart, two system calls an answer."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

COPIED_BYTES = 64 * 1024
"""Beyond that, putting head and body together costs more than it saves."""


class OneWrite:
    """Stands for the transport of a request until its answer begins: holds the head back until the body follows."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head = b""

    def write(self, data: bytes) -> None:
        cycle = self._cycle
        if not cycle.response_started:  # 100 Continue
            self._transport.write(data)
        elif not self._head and cycle.expected_content_length and cycle.scope["method"] != "HEAD":
            self._head = data
        else:
            cycle.transport = self._transport
            if len(data) > COPIED_BYTES:
                self._transport.write(self._head)
                self._transport.write(data)
            else:
                self._transport.write(self._head + data)

    def close(self) -> None:
        self._cycle.transport = self._transport
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
