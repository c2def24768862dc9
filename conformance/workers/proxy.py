"""A proxy before PostgreSQL that can swallow everything, or lose the reply to one statement.

It reads the frontend/backend protocol, version 3 (PostgreSQL's documentation, "Message Formats"): a type byte, a
length that includes itself, the rest; the first message of a connection has no type.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from dataclasses import dataclass, field

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


@dataclass(eq=False)
class _Session:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    statements: dict[bytes, bytes] = field(default_factory=dict)
    watched: str | None = None
    """The call whose reply is held back until it is whole."""
    held: bytearray = field(default_factory=bytearray)

    def abort(self) -> None:
        for writer in (self.client, self.server):
            if writer.transport is not None:
                writer.transport.abort()


class Proxy:
    """Listens on a loopback port of its own and passes on to the server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._sessions: set[_Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lose: str | None = None
        self._signs: list[bytes] = []
        self.lost = 0
        """Replies lost so far."""
        self.connections = 0
        """Connections taken so far."""

    async def start(self) -> int:
        """Answers the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """From now on nothing passes, in either direction, and nobody is told."""
        self._flowing.clear()

    def heal(self) -> None:
        """New connections pass again; those that were cut are broken off, as by a firewall that forgot them."""
        for session in list(self._sessions):
            session.abort()
        self._flowing.set()

    def lose_reply(self, call: str, signs: list[str]) -> None:
        """Lose the next reply to a call (claim, complete, fail, release) that has one of these texts in it.

        Texts look the same in the text and the binary format. The connection is lost with the reply.
        """
        self._lose, self._signs = call, [sign.encode() for sign in signs]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # the end, however
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        first = await _untyped(reader)
        while struct.unpack_from("!I", first, 4)[0] in (SSL_REQUEST, GSS_REQUEST):
            writer.write(b"N")  # not encrypted, else nothing could be read
            first = await _untyped(reader)
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        session = _Session(writer, server_writer)
        self._sessions.add(session)
        try:
            server_writer.write(first)
            pumps = [
                asyncio.create_task(self._to_server(session, reader)),
                asyncio.create_task(self._to_client(session, server_reader)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._sessions.discard(session)
            session.abort()

    async def _to_server(self, session: _Session, reader: asyncio.StreamReader) -> None:
        while True:
            kind, message = await _typed(reader)
            await self._flowing.wait()
            sql = b""
            body = message[5:]
            if kind == b"P":  # Parse: name, statement
                name, statement = body.split(b"\0", 2)[:2]
                session.statements[name] = statement
            elif kind == b"B":  # Bind: portal, name
                sql = session.statements.get(body.split(b"\0", 2)[1], b"")
            elif kind == b"Q":
                sql = body
            if self._lose is not None and re.search(rb"\b%s(_and_claim)?\(" % self._lose.encode(), sql):
                session.watched = self._lose
            session.server.write(message)
            await session.server.drain()

    async def _to_client(self, session: _Session, reader: asyncio.StreamReader) -> None:
        while True:
            kind, message = await _typed(reader)
            await self._flowing.wait()
            if session.watched is None:
                session.client.write(message)
                await session.client.drain()
                continue
            session.held += message
            if kind != b"Z":  # ReadyForQuery: the transaction is over
                continue
            if self._lose == session.watched and any(sign in session.held for sign in self._signs):
                self._lose = None
                self.lost += 1
                return
            session.client.write(bytes(session.held))
            session.held.clear()
            session.watched = None


async def _untyped(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length, "big") - 4)


async def _typed(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
