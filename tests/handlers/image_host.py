"""A host of images on a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x10\x08\x02\x00\x00\x00" + bytes(range(256))

Send = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ImageHost:
    """Answers GET by path with the bytes that a test put there, and notes what it was asked."""

    port: int = 0
    answers: dict[str, bytes | Send] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, path: str, content: bytes, *, status: str = "200 OK", headers: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n{headers}connection: close\r\n\r\n"
        self.answers[path] = head.encode() + content

    def redirect(self, path: str, location: str) -> None:
        self.put(path, b"", status="302 Found", headers=f"location: {location}\r\n")

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = request.split(" ")[1]
            self.paths.append(path)
            self.hosts += [line.split(": ")[1] for line in request.split("\r\n") if line.lower().startswith("host:")]
            answer = self.answers[path]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.set()
        finally:
            writer.close()
