"""A TCP relay before PostgreSQL that can be cut, and that can lose the replies to what was sent."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class CutProxy:
    """Relays a loopback port to the database of `url`; `self.url` is the same database through it."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._lose_after: bytes | None = None
        self.lost = asyncio.Event()
        """Set once a reply was lost on purpose."""
        self._silent = False

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        user = self._to.netloc.rpartition("@")[0]
        return urlunsplit(self._to._replace(netloc=f"{user}@127.0.0.1:{self._port}"))

    async def restore(self) -> None:
        """Listen (again, on the same port)."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Reset every connection, refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def lose_reply_to(self, text: bytes) -> None:
        """The next time a client sends `text`: the database gets it, the client gets a closed connection."""
        self._lose_after = text
        self.lost.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            up_reader, upstream = await asyncio.open_connection(self._to.hostname, self._to.port)
            self._writers.add(upstream)
            replies_lost = asyncio.Event()
            await asyncio.gather(
                self._copy(reader, upstream, replies_lost, asking=True),
                self._copy(up_reader, writer, replies_lost, asking=False),
            )
        except (OSError, asyncio.CancelledError):
            pass  # cancelled at the end of the block; asyncio would log it
        finally:
            self._tasks.discard(task)
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event, *, asking: bool
    ) -> None:
        while data := await reader.read(65536):
            if asking and self._lose_after is not None and self._lose_after in data:
                self._lose_after = None
                losing.set()
            if not asking and losing.is_set():
                # the database has answered, so it has committed
                self.lost.set()
                raise ConnectionError
            writer.write(data)
            await writer.drain()
        raise ConnectionError
