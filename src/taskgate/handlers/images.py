"""The images of a conversation, replaced by data: URIs before it is sent."""

from __future__ import annotations

import asyncio
from typing import Any

from taskgate.handlers.llm_request import MAX_IMAGES
from taskgate.handlers.media import Downloader, MediaRefused

AT_ONCE = 4


async def inline_images(messages: list[Any], downloader: Downloader, max_total: int) -> list[Any]:
    """New messages in which each image_url part holds a data: URI; the given ones are not changed.

    An image that occurs twice is downloaded once. All together have at most `max_total` characters.
    Raises what `Downloader.inline` raises, naming the image by its position in the conversation, from 1.
    """
    found = [url for part in _parts(messages) if (url := _url(part)) is not None]
    if not found:
        return messages
    if len(found) > MAX_IMAGES:
        raise MediaRefused(f"image {MAX_IMAGES + 1}: a task has at most {MAX_IMAGES} images")
    done: dict[str, str] = {}
    total = 0
    turns = asyncio.Semaphore(AT_ONCE)

    async def inline(position: int, url: str) -> None:
        nonlocal total
        async with turns:
            uri = await downloader.inline(url, f"image {position}")
        total += len(uri)
        if total > max_total:
            raise MediaRefused(f"image {position}: the images of this task have more than {max_total} bytes in all")
        done[url] = uri

    try:
        async with asyncio.TaskGroup() as group:
            for url in dict.fromkeys(found):
                group.create_task(inline(found.index(url) + 1, url))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return [_replaced(message, done) for message in messages]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _parts(messages: list[Any]) -> list[Any]:
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return [part for content in contents if isinstance(content, list) for part in content]


def _url(part: Any) -> str | None:
    """The URL of an image part: `{"image_url": {"url": …}}`, or the short form `{"image_url": …}`."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return url if isinstance(url, str) else None


def _replaced(message: Any, done: dict[str, str]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        url = _url(part)
        if url is None:
            parts.append(part)
        elif isinstance(part["image_url"], dict):
            parts.append({**part, "image_url": {**part["image_url"], "url": done[url]}})
        else:
            parts.append({**part, "image_url": done[url]})
    return {**message, "content": parts}
