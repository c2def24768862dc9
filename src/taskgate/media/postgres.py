"""Media in the database: rows of 256 KiB, written and read a few at a time, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from taskgate.media.errors import StoreFailed
from taskgate.protocol.media import CHUNK_BYTES, MediaCalls

T = TypeVar("T")

AT_ONCE = 4
"""Chunks of one call: a MiB."""


class ChunkWriter:
    """Cuts what comes into chunks. `kept` runs a call again while the database is in trouble and the task is ours."""

    def __init__(
        self, calls: MediaCalls, blob: int, kept: Callable[[Callable[[], Awaitable[str]]], Awaitable[str]]
    ) -> None:
        self._calls, self._blob, self._kept = calls, blob, kept
        self._buffer = bytearray()
        self._n = 0

    async def write(self, piece: bytes) -> None:
        self._buffer += piece
        while len(self._buffer) >= AT_ONCE * CHUNK_BYTES:
            await self._flush(AT_ONCE)

    async def close(self) -> None:
        if self._buffer:
            await self._flush(AT_ONCE)

    async def abort(self) -> None:
        self._buffer.clear()  # the rows go with the blob's

    async def _flush(self, most: int) -> None:
        size = min(len(self._buffer), most * CHUNK_BYTES)
        chunks = [bytes(self._buffer[at : min(at + CHUNK_BYTES, size)]) for at in range(0, size, CHUNK_BYTES)]
        outcome = await self._kept(lambda: self._calls.append(self._blob, self._n, chunks))
        if outcome != "done":
            raise StoreFailed("the upload stood still for so long that it was collected")
        del self._buffer[:size]
        self._n += len(chunks)


async def read_chunks(calls: MediaCalls, blob: int, start: int, end: int) -> AsyncIterator[bytes]:
    """Bytes `start` to `end` - 1. No connection is held between the pieces."""
    at = start
    while at < end:
        first = at // CHUNK_BYTES
        last = min(first + AT_ONCE, -(-end // CHUNK_BYTES))
        chunks = await calls.chunks(blob, first, last)
        if len(chunks) != last - first:
            raise StoreFailed("chunks are missing: it was deleted meanwhile")
        for n, chunk in enumerate(chunks, first):
            base = n * CHUNK_BYTES
            piece = chunk[max(0, at - base) : end - base]
            yield piece
            at += len(piece)
