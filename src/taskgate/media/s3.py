"""Media in an S3-compatible bucket, by way of obstore (`pip install 'taskgate[s3]'`).

Keys, tokens and roles come from where AWS programs have them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, web identity, container and instance metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from taskgate.media.errors import StoreFailed
from taskgate.media.place import Place

if TYPE_CHECKING:
    from obstore.store import S3Store

PART_BYTES = 8 * 1024**2
"""Of a multipart upload: 10,000 parts at most, so 80 GB."""
PARTS_AT_ONCE = 2
RETRY_SECONDS = 30
CONNECT_SECONDS = 10


class Bucket:
    """One object a content, under the random key that its upload began with, below the place's prefix."""

    def __init__(self, place: Place) -> None:
        """Connects to nothing yet. Raises ValueError where obstore is not installed."""
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise ValueError(f"{place.name} needs obstore: pip install 'taskgate[s3]'") from error
        config: dict[str, Any] = {}
        if place.endpoint is not None:
            config["endpoint"] = place.endpoint
        if place.region is not None:
            config["region"] = place.region
        self._place = place
        self._store: S3Store = S3Store(
            place.bucket,
            prefix=place.prefix or None,
            client_options={
                "allow_http": (place.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            },
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            **config,
        )

    async def open(self, key: str) -> ObjectWriter:
        return ObjectWriter(self._store, key, self._place.name)

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        import obstore

        if start == end:
            return
        with _failing(self._place.name):
            result = await obstore.get_async(self._store, key, options={"range": (start, end)})
            async for piece in result.stream(min_chunk_size=1024**2):
                yield bytes(piece)

    async def delete(self, key: str) -> None:
        import obstore

        with _failing(self._place.name), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, key)


class ObjectWriter:
    """Feeds an upload that runs beside: a part is sent while the next one comes."""

    def __init__(self, store: S3Store, key: str, where: str) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._where = where
        self._broken = False
        self._upload = asyncio.create_task(self._run(store, key))

    async def write(self, piece: bytes) -> None:
        await self._put(piece)

    async def close(self) -> None:
        await self._put(None)
        with _failing(self._where):
            await self._upload

    async def abort(self) -> None:
        self._broken = True
        if not self._upload.done():
            await self._put(None)  # what the upload waits for: it sees that it is given up, and says so to the bucket
        await asyncio.wait([self._upload])
        if not self._upload.cancelled():
            self._upload.exception()

    async def _put(self, piece: bytes | None) -> None:
        """Waits for room, or for the upload's end, which is then too early."""
        put = asyncio.ensure_future(self._pieces.put(piece))
        await asyncio.wait((put, self._upload), return_when=asyncio.FIRST_COMPLETED)
        if not put.done():
            put.cancel()
            with _failing(self._where):
                await self._upload

    async def _run(self, store: S3Store, key: str) -> None:
        import obstore

        await obstore.put_async(
            store, key, self._all(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    async def _all(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if self._broken:
            raise StoreFailed("the upload was given up")


@contextlib.contextmanager
def _failing(where: str) -> Any:
    """Says what the bucket said as StoreFailed."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreFailed(f"{where}: {str(error).splitlines()[0][:500]}") from error
