"""A small HTTP/1.1 server on asyncio and httptools, with control of every byte that is sent."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

Respond = Callable[["Request", "Connection"], Awaitable[None]]


@dataclass(slots=True)
class Request:
    method: str
    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    keep_alive: bool


@dataclass(slots=True)
class _Incoming:
    url: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One connection: requests are answered in turn, and a close by the client cancels the answer."""

    def __init__(self, respond: Respond, open_connections: set[Connection]) -> None:
        self._respond, self._open = respond, open_connections
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = _Incoming()
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport
        self.closed_by_client = False

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._waiting.clear()
        if self._writable and not self._writable.done():
            self._writable.set_result(None)
        if self._task is not None:
            self.closed_by_client = True
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # httptools
    def on_message_begin(self) -> None:
        self._incoming = _Incoming()

    def on_url(self, url: bytes) -> None:
        self._incoming.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers.append((name, value))

    def on_headers_complete(self) -> None:
        for name, value in self._incoming.headers:
            if name.lower() == b"expect" and value.lower() == b"100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._incoming.body.append(data)

    def on_message_complete(self) -> None:
        incoming = self._incoming
        path, _, query = incoming.url.decode("latin-1").partition("?")
        self._waiting.append(
            Request(
                self._parser.get_method().decode("latin-1"),
                path,
                query,
                incoming.headers,
                b"".join(incoming.body),
                self._parser.should_keep_alive(),
            )
        )
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    # answering
    async def _serve(self) -> None:
        try:
            while self._waiting and not self.transport.is_closing():
                request = self._waiting.popleft()
                await self._respond(request, self)
                if not request.keep_alive:
                    self.transport.close()
        except asyncio.CancelledError:
            pass  # the connection is gone, nobody is left to tell
        except Exception:
            traceback.print_exc()
            self.transport.close()
        finally:
            self._task = None

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        if self._writable is not None:
            await self._writable

    def close(self) -> None:
        """Close the connection once what was written is sent, whatever was promised to follow."""
        self.transport.close()


def head(status: int, headers: Mapping[str, str], length: int | None, keep_alive: bool = True) -> bytes:
    """Status line and headers; no length means the body is chunked."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)
