"""Clients that are slow: bounds on how long a request may take to come in, none on how long it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taskgate.api import deadline, http
from taskgate.api.app import create_app
from taskgate.protocol.calls import Calls, NewTask
from taskgate.settings import Settings
from tests.api.serving import served_here

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SECONDS = 0.3
HOST = b"Host: localhost\r\n"


@pytest.fixture
async def port(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The API in this process, impatient."""
    monkeypatch.setattr(http, "BODY_SECONDS", SECONDS)
    monkeypatch.setattr(deadline, "HEADER_SECONDS", SECONDS)
    app = create_app(Settings(database_url=database))
    async with served_here(app, http="taskgate.api.deadline:DeadlineProtocol", lifespan="on") as port:
        yield port


async def answered(streams: Streams) -> bytes:
    """One answer, of a body with a length."""
    head = await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), 60)
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await streams[0].readexactly(int(length.split(b":")[1]))


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo", b"\r\n", b"GET"])
async def test_a_head_that_never_ends(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


@pytest.mark.parametrize("rest", [b"\r\n", b"GET /heal"])
async def test_the_same_after_an_answer(port: int, rest: bytes) -> None:
    streams = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        streams[1].write(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b" 200 " in await answered(streams)
    streams[1].write(rest)
    assert await asyncio.wait_for(streams[0].read(), 60) == b""
    streams[1].close()


@pytest.mark.parametrize("size", [b"Content-Length: 100\r\n\r\n{", b"Content-Length: 9\r\n\r\n",
                                  b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])  # fmt: skip
async def test_a_body_that_never_ends(port: int, size: bytes, calls: Calls) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /tasks HTTP/1.1\r\n" + HOST + size)
    answer = await asyncio.wait_for(reader.read(), 60)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in answer
    assert b"connection: close" in answer.lower()
    writer.close()
    assert await calls.page() == []


async def test_a_body_in_pieces_and_a_long_wait_are_served(port: int, calls: Calls) -> None:
    streams = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"prompt":"x"}'
    streams[1].write(b"POST /tasks HTTP/1.1\r\n" + HOST + b"Content-Length: 14\r\n\r\n")
    for position in range(len(body)):
        streams[1].write(body[position : position + 1])
        await asyncio.sleep(SECONDS / 10)
    assert b" 202 " in await answered(streams)
    await calls.enqueue([NewTask("t", "llm", "{}")])
    streams[1].write(b"GET /tasks/t?wait=1 HTTP/1.1\r\n" + HOST + b"\r\n")  # longer than a head may take
    assert b'"status":"pending"' in await answered(streams)
    streams[1].close()
