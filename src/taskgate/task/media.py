"""Images, videos and the like that a task makes: how they are named, and what a result says of them."""

from __future__ import annotations

import re
from typing import Protocol, TypedDict

MEDIA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MEDIA_TYPE = re.compile(r"(?=.{3,100}\Z)[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*")


class MediaRef(TypedDict):
    """What a result says of a stored medium."""

    sha256: str
    """In hex."""
    bytes: int
    mime: str
    url: str
    """Its path in the API: /tasks/{task_id}/media/{name}."""


class MediaUpload(Protocol):
    """A medium on its way into the store."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> MediaRef: ...

    async def abort(self) -> None: ...
