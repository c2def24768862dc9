"""A host of images on loopback, which a worker may fetch from only when it is told so."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack("!IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    + _chunk(b"IEND", b"")
)
"""One red pixel."""

PAGES = {"/dot.png": ("image/png", PNG), "/page.html": ("text/html", b"<html>no image</html>")}


class ImageHost:
    """Serves PAGES, everything else is 404."""

    def __init__(self) -> None:
        self.requests = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Answers its base URL."""
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            path = head.split(b" ", 2)[1].decode("latin-1")
            kind, body = PAGES.get(path, ("text/plain", b"no such page"))
            status = "200 OK" if path in PAGES else "404 Not Found"
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()
