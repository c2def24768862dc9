"""What a place of media has to do, and which one the settings mean."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Protocol

from taskgate.media.place import Place
from taskgate.protocol.media import MediaCalls, StoredMedia


class Writer(Protocol):
    """One upload under way. Raises StoreFailed."""

    async def write(self, piece: bytes) -> None:
        """Takes the next bytes."""

    async def close(self) -> None:
        """All of them are there, on disk."""

    async def abort(self) -> None:
        """Forgets them; what cannot be deleted now is collected later."""


class Backend(Protocol):
    """A folder or a bucket (the database is served by the calls alone)."""

    async def open(self, key: str) -> Writer: ...

    def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` - 1, in pieces. Raises StoreFailed."""

    async def delete(self, key: str) -> None:
        """Deletes an object; one that is not there is fine. Raises StoreFailed."""


def open_backend(place: Place) -> Backend | None:
    """What serves a place; None for the database. Raises ValueError when its library is not installed."""
    if place.folder:
        from taskgate.media.files import Files

        return Files(place.folder)
    if place.bucket:
        from taskgate.media.s3 import Bucket

        return Bucket(place)
    return None


def new_key() -> str:
    """A random key, spread over 256 folders."""
    name = secrets.token_hex(16)
    return f"{name[:2]}/{name}"


async def read_media(
    calls: MediaCalls, backend: Backend | None, media: StoredMedia, start: int, end: int
) -> AsyncIterator[bytes]:
    """Bytes `start` to `end` - 1 of a medium, in pieces of a MiB at most. Raises StoreFailed."""
    if media.object is None:
        from taskgate.media.postgres import read_chunks

        pieces = read_chunks(calls, media.blob, start, end)
    else:
        assert backend is not None
        pieces = backend.read(media.object, start, end)
    async for piece in pieces:
        yield piece
