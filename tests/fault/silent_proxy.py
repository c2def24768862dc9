"""A TCP relay that can turn into a black hole: connections stay open, and nothing comes through either way."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class SilentProxy:
    """Relays `port` (0: a free one) to where a PostgreSQL URL points; `url` is the same URL through it."""

    def __init__(self, target: str, port: int = 0) -> None:
        self._port = port
        self._target = urlsplit(target)
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        port = self._server.sockets[0].getsockname()[1]
        credentials = self._target.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._target._replace(netloc=f"{credentials}@127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        """From now on nothing gets through, and nobody is told."""
        self._open.clear()

    def restore(self) -> None:
        """Let new connections through; those that were open are reset, as after a failover."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            back, upstream = await asyncio.open_connection(self._target.hostname, self._target.port)
            self._writers.add(upstream)
            copies = [asyncio.create_task(self._copy(a, b)) for a, b in ((reader, upstream), (back, writer))]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # the end of this connection; the streams' own callback would log it
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self._open.is_set():
                    await asyncio.Event().wait()  # swallowed, and so is everything after it
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
