"""GET /tasks/{task_id}/media/{name}: what a task made, streamed, whole or a range of it."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from taskgate.api.context import Context
from taskgate.api.dependencies import KNOWN_PARAMETERS, TheCaller, TheContext, ask
from taskgate.api.describe import problems
from taskgate.api.http import Disconnected
from taskgate.api.problems import Problem, unavailable
from taskgate.api.ranges import NotSatisfiable, asked_range, is_known
from taskgate.logs import get_logger
from taskgate.media.backend import read_media
from taskgate.media.errors import StoreFailed
from taskgate.protocol.connect import DATABASE_ERRORS
from taskgate.protocol.media import POSTGRES, StoredMedia
from taskgate.task import MEDIA_NAME

log = get_logger("api")
router = APIRouter()

SHOWN = ("image/", "video/", "audio/")
"""A browser shows these in place; anything else, which might be a page with scripts, is saved."""

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_HEADERS = {
    "ETag": {"schema": {"type": "string"}, "description": "The content's SHA-256 in hex, quoted"},
    "Content-Disposition": {"schema": {"type": "string"}, "description": "With a file name"},
}
_PARTIAL = {"Content-Range": {"schema": {"type": "string"}, "description": "`bytes FIRST-LAST/ALL`"}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "All of it", "content": {"*/*": _BYTES}, "headers": _HEADERS},
    206: {"description": "The range asked for", "content": {"*/*": _BYTES}, "headers": {**_HEADERS, **_PARTIAL}},
    304: {"description": "The caller has it (If-None-Match)"},
    416: {"description": "The range lies behind the end", **problems(404)[404], "headers": _PARTIAL},
    **problems(401, 403, 404, 422, 503),
}


@router.api_route(
    "/tasks/{task_id:path}/media/{name}",
    methods=["HEAD"],
    include_in_schema=False,
    dependencies=[KNOWN_PARAMETERS],
)
@router.get(
    "/tasks/{task_id:path}/media/{name}",
    summary="Read an image or a video that a task made",
    description="`result` of the task names it. One `Range` of bytes is served, also with `If-Range`; HEAD too.",
    response_class=Response,
    responses=_RESPONSES,
    dependencies=[KNOWN_PARAMETERS],
)
async def media(context: TheContext, caller: TheCaller, request: Request, task_id: str, name: str) -> Response:
    found = None
    if "\x00" not in task_id and MEDIA_NAME.fullmatch(name):
        found = await ask(context, context.media.find(task_id, name, tenant=caller.sees))
    if found is None:
        raise Problem(404, "media_not_found", "There is no such task, or nothing of that name in it.", task_id=task_id)
    if found.store not in (POSTGRES, context.media_place.name):
        raise Problem(
            500,
            "media_elsewhere",
            f"It is kept in {found.store}, which this API does not read: set TASKGATE_MEDIA_STORE to it.",
            task_id=task_id,
        )
    etag = f'"{found.sha256}"'
    headers = {
        "etag": etag,
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": _disposition(name, found.mime),
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
    }
    if is_known(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    start, end, status = 0, found.bytes, 200
    try:
        part = asked_range(request.headers.get("range"), request.headers.get("if-range"), etag, found.bytes)
    except NotSatisfiable:
        raise Problem(
            416,
            "range_not_satisfiable",
            f"It has {found.bytes} bytes.",
            headers=[(b"content-range", f"bytes */{found.bytes}".encode())],
        ) from None
    if part is not None and request.method == "GET":  # for other methods Range has no meaning
        (start, end), status = part, 206
        headers["content-range"] = f"bytes {start}-{end - 1}/{found.bytes}"
    headers["content-length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=found.mime)
    return StreamingResponse(await _begun(context, found, start, end), status, headers, media_type=found.mime)


async def _begun(context: Context, found: StoredMedia, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes; the first of them are read before the answer begins, so that a failure is an answer of its own."""
    pieces = read_media(context.media, context.media_backend, found, start, end)
    try:
        first = await ask(context, anext(pieces, b""))
    except StoreFailed as error:
        raise unavailable("media_store_failed", f"The media store failed: {error}. Try again.") from None
    return _rest(first, pieces)


async def _rest(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for piece in pieces:
            yield piece
    except (StoreFailed, *DATABASE_ERRORS, asyncpg.PostgresError) as error:
        log.warning("media_broke_off", error=f"{type(error).__name__}: {error}")
        raise Disconnected from None  # too late for an answer: the connection ends short of its length


def _disposition(name: str, mime: str) -> str:
    kind = "inline" if mime.startswith(SHOWN) and mime != "image/svg+xml" else "attachment"
    ending = mimetypes.guess_extension(mime) or ""
    file = name if "." in name else name + ending
    return f'{kind}; filename="{file}"'
