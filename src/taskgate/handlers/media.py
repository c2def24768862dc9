"""Images and videos that tasks name: downloaded under guard (guarded.py), checked, and made into data: URIs."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskgate.handlers.guarded import GuardedClient, MediaRefused, MediaUnavailable, Resolve, resolve_host, shown
from taskgate.handlers.pictures import IMAGES, SNIFFED_BYTES, VIDEOS, image_size, sniff
from taskgate.task import Retry

if TYPE_CHECKING:
    import httpx2

DEADLINE_SECONDS = 30.0
MAX_PIXELS = 50_000_000  # TASKGATE_MEDIA_MAX_PIXELS, unless it is set

__all__ = ["IMAGES", "VIDEOS", "Downloader", "Fetched", "MediaRefused", "MediaUnavailable", "resolve_host", "sniff"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A medium in memory."""

    mime: str
    content: bytes | bytearray


@dataclass(frozen=True, slots=True)
class Arriving:
    """A medium that comes in; `chunks` can be read once."""

    mime: str
    chunks: AsyncIterator[bytes]


class Downloader:
    """Downloads media of at most `max_bytes`, images of at most `max_pixels`, each within `deadline` seconds in all."""

    def __init__(
        self,
        allow: str = "",
        *,
        max_bytes: int,
        max_pixels: int = MAX_PIXELS,
        deadline: float = DEADLINE_SECONDS,
        own: Iterable[str] = (),
        resolve: Resolve | None = None,
    ) -> None:
        """`own` are the base URLs of the configured providers: their host and port is allowed by itself.

        Raises ValueError for an `allow` that cannot be read; its form is that of TASKGATE_MEDIA_ALLOW.
        """
        self._client = GuardedClient(allow, own, resolve)
        self._max_bytes, self._max_pixels, self._deadline = max_bytes, max_pixels, deadline

    async def inline(self, url: str, name: str, kinds: Collection[str] = IMAGES) -> str:
        """The medium as a data: URI. `name` is what errors call it, such as `image 2`; `kinds` are the types that do.

        Raises MediaRefused (a forbidden host, too many bytes or pixels, another type), MediaUnavailable (the host
        answered 4xx) or Retry (it cannot be reached, answered 5xx, or took too long).
        """
        if url[:5].lower() == "data:":
            found, text = self._decoded(url, name, kinds)
            return f"data:{found.mime};base64,{text}"
        found = await self.fetch(url, name, kinds)
        return f"data:{found.mime};base64,{base64.b64encode(found.content).decode()}"

    async def fetch(self, url: str, name: str, kinds: Collection[str] = IMAGES) -> Fetched:
        """The medium, in memory; also of a data: URI. Raises what `inline` does."""
        if url[:5].lower() == "data:":
            return self._decoded(url, name, kinds)[0]
        content = bytearray()
        async with self.open(url, name, kinds) as media:
            async for part in media.chunks:
                content += part
        self._check_pixels(content, media.mime, name)
        return Fetched(media.mime, content)

    @asynccontextmanager
    async def open(
        self,
        url: str,
        name: str,
        kinds: Collection[str] = IMAGES,
        *,
        max_bytes: int | None = None,
        deadline: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Arriving]:
        """The medium as it comes. The deadline counts for the whole block; `headers` go to the URL's own origin only,
        not where it redirects to. Raises what `inline` does; pixels are not counted.
        """
        seconds = self._deadline if deadline is None else deadline
        accept = ", ".join(sorted({f"{kind.partition('/')[0]}/*" for kind in kinds}))
        timer = asyncio.timeout(seconds)
        try:
            async with (
                timer,
                self._client.get(url, name, accept=accept, timeout=seconds, headers=headers or {}) as response,
            ):
                where = f"{name}: {shown(url)}"
                parts = self._parts(response, where, name, kinds, max_bytes or self._max_bytes)
                head = bytearray()
                while len(head) < SNIFFED_BYTES and (part := await anext(parts, b"")):
                    head += part
                yield Arriving(_known(head, kinds, where), _joined(bytes(head), parts))
        except TimeoutError:
            if not timer.expired():
                raise
            words = f"{name}: {shown(url)} was not downloaded within {seconds:g} s"
            raise Retry(words, code="media_unavailable") from None

    async def _parts(
        self, response: httpx2.Response, where: str, name: str, kinds: Collection[str], most: int
    ) -> AsyncIterator[bytes]:
        import httpx2

        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise _too_large(name, kinds, most)
        size = 0
        try:
            async for part in response.aiter_raw():
                size += len(part)
                if size > most:
                    raise _too_large(name, kinds, most)
                if part:
                    yield part
        except httpx2.TransportError as error:
            words = str(error) or type(error).__name__
            raise Retry(f"{where} broke off: {words}", code="media_unavailable") from None

    def _decoded(self, uri: str, name: str, kinds: Collection[str]) -> tuple[Fetched, str]:
        """What a data: URI holds, and its base64."""
        heading, comma, text = uri.partition(",")
        if not comma or not heading.lower().endswith(";base64"):
            raise MediaRefused(f"{name}: the data: URI must look like data:image/png;base64,…")
        if len(text) // 4 * 3 > self._max_bytes + 2:
            raise _too_large(name, kinds, self._max_bytes)
        try:
            content = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            raise MediaRefused(f"{name}: the data: URI holds no valid base64") from None
        if len(content) > self._max_bytes:
            raise _too_large(name, kinds, self._max_bytes)
        mime = _known(content, kinds, f"{name}: the data: URI")
        self._check_pixels(content, mime, name)
        return Fetched(mime, content), text

    def _check_pixels(self, content: bytes | bytearray, mime: str, name: str) -> None:
        if mime not in IMAGES:
            return
        size = image_size(content, mime)
        if size is None:
            raise MediaRefused(f"{name}: its width and height cannot be read, so it is damaged")
        if size[0] * size[1] > self._max_pixels:
            raise MediaRefused(
                f"{name} has {size[0]} x {size[1]} pixels, more than {self._max_pixels} (TASKGATE_MEDIA_MAX_PIXELS)"
            )


def _too_large(name: str, kinds: Collection[str], most: int) -> MediaRefused:
    setting = "TASKGATE_MEDIA_MAX_VIDEO_BYTES" if VIDEOS & set(kinds) else "TASKGATE_MEDIA_MAX_BYTES"
    return MediaRefused(f"{name} is larger than {most} bytes ({setting})")


def _known(content: bytes | bytearray, kinds: Collection[str], where: str) -> str:
    """The type, if it is one of `kinds`. Raises MediaRefused."""
    mime = sniff(content)
    if mime is None or mime not in kinds:
        images = "PNG, JPEG, GIF or WebP image" if IMAGES & set(kinds) else ""
        videos = "MP4, WebM or QuickTime video" if VIDEOS & set(kinds) else ""
        verb = "holds" if where.endswith("data: URI") else "is"
        raise MediaRefused(f"{where} {verb} no {' and no '.join(filter(None, (images, videos)))}")
    return mime


async def _joined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for part in rest:
        yield part
