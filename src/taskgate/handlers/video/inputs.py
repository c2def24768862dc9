"""The media of a request, brought into the form that its wire takes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from taskgate.handlers.media import IMAGES, VIDEOS, Downloader
from taskgate.handlers.video.accounts import Account
from taskgate.handlers.video.wire import Inputs, Media, mime_of_uri


async def load(request: Mapping[str, Any], account: Account, images: Downloader, videos: Downloader) -> Inputs:
    """Downloads what the provider cannot read itself. Raises what `Downloader.fetch` raises, naming the field."""

    async def image(url: str, name: str) -> Media:
        if url.startswith("gs://"):
            return Media(mime_of_uri(url, "image/png"), uri=url)
        fetched = await images.fetch(url, name, kinds=IMAGES)
        return Media(fetched.mime, data=base64.b64encode(fetched.content).decode())

    async def video(url: str, name: str) -> Media:
        if url.startswith("gs://") or (account.api != "vertex" and account.is_own(url)):
            return Media(mime_of_uri(url, "video/mp4"), uri=url)
        fetched = await videos.fetch(url, name, kinds=VIDEOS)
        return Media(fetched.mime, data=base64.b64encode(fetched.content).decode())

    references = []
    for position, each in enumerate(request.get("reference_images") or ()):
        url, kind = (each["image"], each.get("type") or "asset") if isinstance(each, dict) else (each, "asset")
        references.append((await image(url, f"reference image {position + 1}"), kind))
    return Inputs(
        request,
        await image(request["image"], "image") if request.get("image") else None,
        await image(request["last_frame"], "last_frame") if request.get("last_frame") else None,
        references,
        await video(request["video"], "video") if request.get("video") else None,
    )
