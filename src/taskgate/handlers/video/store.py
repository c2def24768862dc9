"""Finished videos: copied from the provider into the task's store, since links of providers expire."""

from __future__ import annotations

import asyncio
import binascii
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urljoin

from taskgate.handlers.media import VIDEOS, Downloader, MediaUnavailable, sniff
from taskgate.handlers.video.accounts import Account, origin
from taskgate.handlers.video.http import NoAnswer, ProviderHttp
from taskgate.handlers.video.wire import Video
from taskgate.task import PermanentError, Retry, Task

STORAGE = "https://storage.googleapis.com"
MAX_REDIRECTS = 3
MAX_REFUSALS = 5
"""A download that was refused so often in a row (4xx) is given up."""
MAX_PAUSE = 60.0
MAX_FOREIGN_BYTES, FOREIGN_SECONDS = 2 * 1024**3, 600.0
BLOCK = 3 * 256 * 1024
"""Characters of base64 decoded at once; a multiple of four."""


class _Refused(Exception):
    """The host answered 4xx."""


async def store(
    task: Task[Any], account: Account, http: ProviderHttp, foreign: Downloader, videos: Any, bucket: str
) -> list[Any]:
    """What the result says of each video. `bucket` is the base URL for gs:// objects.

    Raises PermanentError `video_gone`, and what `task.store_media` raises; goes on until then.
    """
    found = []
    for number, video in enumerate(videos, 1):
        ref = await _store_one(task, account, http, foreign, video, f"video-{number}.mp4", bucket or STORAGE)
        found.append({**ref, "uri": video.uri or None})
    return found


async def _store_one(
    task: Task[Any], account: Account, http: ProviderHttp, foreign: Downloader, video: Video, name: str, bucket: str
) -> Any:
    if video.data:
        return await task.store_media(name, _decoded(video.data), video.mime)
    refusals, pause = 0, 1.0
    while True:
        try:
            async with http.large:
                return await _copy(task, account, http, foreign, video, name, bucket)
        except (_Refused, MediaUnavailable) as error:
            refusals += 1
            if refusals >= MAX_REFUSALS:
                raise PermanentError(
                    f"the video cannot be had from the provider: {error}", code="video_gone"
                ) from error
        except (NoAnswer, Retry):
            refusals = 0
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(MAX_PAUSE, pause * 2)


async def _copy(
    task: Task[Any], account: Account, http: ProviderHttp, foreign: Downloader, video: Video, name: str, bucket: str
) -> Any:
    url, secret = video.uri, await account.headers()
    if url.startswith("gs://"):
        container, _, path = url[5:].partition("/")
        url = f"{bucket.rstrip('/')}/storage/v1/b/{quote(container, safe='')}/o/{quote(path, safe='')}?alt=media"
        trusted = url
    else:
        trusted = account.endpoint
    for _ in range(MAX_REDIRECTS + 1):
        if origin(url) != origin(trusted):
            # elsewhere: without the key, and under the guard that holds for every foreign URL
            async with foreign.open(
                url, name, kinds=VIDEOS, max_bytes=MAX_FOREIGN_BYTES, deadline=FOREIGN_SECONDS
            ) as media:
                return await task.store_media(name, media.chunks, media.mime)
        async with http.stream(url, secret) as response:
            if response.is_redirect and response.headers.get("location"):
                url = urljoin(url, response.headers["location"])
                continue
            if response.status_code >= 300:
                words = f"it answered {response.status_code}"
                if response.status_code in (408, 425, 429) or response.status_code >= 500:
                    raise NoAnswer("unknown", words)
                raise _Refused(words)
            chunks = response.aiter_bytes()
            first = b""
            async for part in chunks:
                first += part
                if len(first) >= 32:
                    break
            return await task.store_media(name, _after(first, chunks), sniff(first) or video.mime)
    raise _Refused(f"it redirects more than {MAX_REDIRECTS} times")


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part


async def _decoded(text: str) -> AsyncIterator[bytes]:
    """Raises PermanentError `no_video` for what is no base64: the provider's answer will not change."""
    for start in range(0, len(text), BLOCK):
        try:
            yield binascii.a2b_base64(text[start : start + BLOCK])
        except binascii.Error as error:
            raise PermanentError(f"the provider's video is no base64: {error}", code="no_video") from None
