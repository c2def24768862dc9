"""A TCP relay before PostgreSQL: the ground for proxies that make trouble."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Relay:
    """Relays a loopback port (0: a free one) to where a PostgreSQL URL points; `url` is the same URL through it."""

    def __init__(self, target: str, port: int = 0) -> None:
        self._port = port
        self._target = urlsplit(target)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        credentials = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{credentials}@127.0.0.1:{self._port}"))

    async def passes(self, data: bytes, losing: asyncio.Event, *, asking: bool) -> bool:
        """Whether data goes on, to the database (`asking`) or back; no: the connection ends.

        `losing` belongs to the connection, to remember by.
        """
        return True

    async def before_connecting(self) -> None:
        """Holds a new connection up."""

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self.before_connecting()
            back, upstream = await asyncio.open_connection(self._target.hostname, self._target.port)
            self._writers.add(upstream)
            losing = asyncio.Event()
            copies = [
                asyncio.create_task(self._copy(reader, upstream, losing, asking=True)),
                asyncio.create_task(self._copy(back, writer, losing, asking=False)),
            ]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                await asyncio.gather(*copies, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the end of this connection; the streams' own callback would log it
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._tasks.discard(task)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event, *, asking: bool
    ) -> None:
        while (data := await reader.read(65536)) and await self.passes(data, losing, asking=asking):
            writer.write(data)
            await writer.drain()
