"""A light HTTP client, so that the client is not what is measured: one connection, one request at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

SECONDS = 90.0


class Connection(asyncio.Protocol):
    """HTTP/1.1, kept alive. Answers are JSON."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._reset()

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = urlsplit(url)
        _, connection = await asyncio.get_running_loop().create_connection(cls, str(parts.hostname), parts.port or 80)
        return connection

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()

    async def send(self, method: str, path: str, value: Any = None) -> tuple[int, Any]:
        """Status and value. Raises ConnectionError, TimeoutError."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("connection closed")
        body = b"" if value is None else json.dumps(value).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
        head += "\r\nContent-Type: application/json" if body else ""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"{head}\r\n\r\n".encode() + body)
        status, found = await asyncio.wait_for(self._answer, SECONDS)
        return status, json.loads(found)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(str(exc) if exc else "connection closed"))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        found = self._parser.get_status_code(), bytes(self._body)
        self._reset()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(found)
