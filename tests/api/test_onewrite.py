"""Head and body in one write, and nothing held back that should be on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from taskgate.api.deadline import DeadlineProtocol
from tests.api.serving import served_here

go_on = asyncio.Event()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    if path == "/read":
        await receive()
    length = {"/parts": b"6", "/broken": b"6", "/empty": b"0"}.get(path, b"3")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    if path == "/broken":
        raise RuntimeError("on purpose")
    if path == "/parts":
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"t", "more_body": True})
        await send({"type": "http.response.body", "body": b"wo"})
    elif path == "/empty":
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "http.response.body", "body": b"all"})


class Recorder(asyncio.Transport):
    """Passes on what a protocol writes, and keeps each write."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        super().__init__()
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self._writes.append(bytes(data))
        self._transport.write(data)

    def __getattribute__(self, name: str) -> Any:
        own = name in ("write", "_transport", "_writes", "__class__")
        return object.__getattribute__(self, name) if own else getattr(self._transport, name)


Exchange = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
def writes() -> list[bytes]:
    return []


@pytest.fixture
async def exchange(writes: list[bytes]) -> AsyncIterator[Exchange]:
    """Sends a request to the application over a connection of its own; answers its streams."""
    go_on.clear()

    class Recorded(DeadlineProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(Recorder(transport, writes))

    opened: list[asyncio.StreamWriter] = []
    async with served_here(app, http=Recorded, lifespan="off") as port:

        async def send(request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(writer)
            writer.write(request)
            return reader, writer

        yield send
        for writer in opened:
            writer.close()


async def head(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)


async def test_an_answer_is_one_write(exchange: Exchange, writes: list[bytes]) -> None:
    reader, writer = await exchange(b"GET /all HTTP/1.1\r\n\r\n")
    assert (await head(reader)).startswith(b"HTTP/1.1 200 ")
    assert await reader.readexactly(3) == b"all"
    writer.write(b"GET /all HTTP/1.1\r\n\r\nGET /all HTTP/1.1\r\n\r\n")  # kept alive, and pipelined
    for _ in range(2):
        await head(reader)
        assert await reader.readexactly(3) == b"all"
    assert len(writes) == 3


async def test_a_stream_goes_out_as_it_comes(exchange: Exchange) -> None:
    reader, _ = await exchange(b"GET /parts HTTP/1.1\r\n\r\n")
    await head(reader)
    assert await asyncio.wait_for(reader.readexactly(3), 60) == b"one"
    go_on.set()
    assert await asyncio.wait_for(reader.readexactly(3), 60) == b"two"


@pytest.mark.parametrize("request_line", [b"HEAD /all", b"GET /empty"])
async def test_a_head_without_a_body(exchange: Exchange, request_line: bytes) -> None:
    reader, writer = await exchange(request_line + b" HTTP/1.1\r\n\r\n")
    await head(reader)
    writer.write(b"GET /all HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert (await head(reader)).startswith(b"HTTP/1.1 200 ")
    assert await asyncio.wait_for(reader.read(), 60) == b"all"


async def test_an_answer_that_breaks_off(exchange: Exchange) -> None:
    reader, _ = await exchange(b"GET /broken HTTP/1.1\r\n\r\n")
    assert b"content-length: 6" in await head(reader)
    assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_the_go_ahead_for_a_body_is_not_held_back(exchange: Exchange) -> None:
    reader, writer = await exchange(b"POST /read HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await head(reader) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await head(reader)).startswith(b"HTTP/1.1 200 ")
    assert await reader.readexactly(3) == b"all"
