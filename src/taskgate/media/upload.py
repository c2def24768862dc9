"""What a worker writes media through: hashed as they come, attached in the end under the task's token."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar
from urllib.parse import quote

from taskgate.media.backend import Backend, Writer, new_key
from taskgate.media.errors import StoreFailed
from taskgate.media.place import Place
from taskgate.media.postgres import ChunkWriter
from taskgate.protocol.media import MediaCalls
from taskgate.task import LeaseLost, MediaRef, PermanentError, Retry

T = TypeVar("T")

PIECE_BYTES = 1024**2
"""What is passed on at once; a handler's own pieces may have any size."""
SIGN_OF_LIFE_SECONDS = 60.0
"""An upload to a folder or bucket tells the database so often that it goes on."""
ABORT_SECONDS = 10.0


class Owner(Protocol):
    """The attempt that stores something."""

    @property
    def task_id(self) -> str: ...

    @property
    def token(self) -> int: ...

    async def kept(self, call: Callable[[], Awaitable[T]]) -> T:
        """The call's answer, however long the database is in trouble, as long as the task is ours. Raises LeaseLost."""


class MediaStore:
    """Where this worker's media go."""

    def __init__(self, calls: MediaCalls, place: Place, backend: Backend | None, max_bytes: int) -> None:
        self.calls, self.place, self.backend, self.max_bytes = calls, place, backend, max_bytes

    async def begin(self, owner: Owner, name: str, mime: str) -> Upload:
        """Raises LeaseLost, or Retry `media_store` when the place does not take it."""
        key = None if self.backend is None else new_key()
        blob = await owner.kept(lambda: self.calls.begin(self.place.name, key))
        if self.backend is None or key is None:
            return Upload(self, owner, name, mime, blob, key, ChunkWriter(self.calls, blob, owner.kept))
        try:
            return Upload(self, owner, name, mime, blob, key, await self.backend.open(key))
        except StoreFailed as error:
            raise not_stored(error) from error


class Upload:
    """One medium on its way. After `finish` or `abort` it is over."""

    def __init__(
        self, store: MediaStore, owner: Owner, name: str, mime: str, blob: int, key: str | None, writer: Writer
    ) -> None:
        self._store, self._owner, self._writer = store, owner, writer
        self._name, self._mime, self._blob, self._key = name, mime, blob, key
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._told = time.monotonic()

    async def write(self, data: bytes) -> None:
        """Raises LeaseLost, Retry `media_store`, or PermanentError `media_too_large`."""
        self._bytes += len(data)
        if self._bytes > self._store.max_bytes:
            raise PermanentError(
                f"{self._name} is larger than {self._store.max_bytes} bytes (TASKGATE_MEDIA_MAX_STORE_BYTES)",
                code="media_too_large",
            )
        try:
            for at in range(0, len(data), PIECE_BYTES):
                piece = bytes(data[at : at + PIECE_BYTES])
                self._hash.update(piece)
                await self._writer.write(piece)
            if self._key is not None and time.monotonic() - self._told > SIGN_OF_LIFE_SECONDS:
                await self._owner.kept(lambda: self._store.calls.append(self._blob, 0, []))
                self._told = time.monotonic()
        except StoreFailed as error:
            raise not_stored(error) from error

    async def finish(self) -> MediaRef:
        """Raises LeaseLost when the task is not ours any more (nothing is attached), or Retry `media_store`."""
        try:
            await self._writer.close()
        except StoreFailed as error:
            raise not_stored(error) from error
        outcome = await self._owner.kept(
            lambda: self._store.calls.attach(
                self._owner.task_id,
                self._owner.token,
                self._name,
                self._blob,
                sha256=self._hash.hexdigest(),
                size=self._bytes,
                mime=self._mime,
            )
        )
        if outcome == "stale":
            raise LeaseLost(f"task {self._owner.task_id} is no longer this worker's")
        if outcome == "shared":
            with contextlib.suppress(Exception):  # else it is collected later
                await self._discard()
        elif outcome != "done":
            raise not_stored(StoreFailed(f"the upload is {outcome}"))
        path = f"/tasks/{quote(self._owner.task_id, safe='')}/media/{self._name}"
        return {"sha256": self._hash.hexdigest(), "bytes": self._bytes, "mime": self._mime, "url": path}

    async def abort(self) -> None:
        """Takes it back as far as that goes quickly; the rest is collected later."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ABORT_SECONDS):
                await self._writer.abort()
                await self._discard()

    async def _discard(self) -> None:
        if self._store.backend is not None and self._key is not None:
            await self._store.backend.delete(self._key)
        await self._store.calls.discard(self._blob)


def not_stored(error: StoreFailed) -> Retry:
    return Retry(f"the media store failed: {error}", code="media_store")
