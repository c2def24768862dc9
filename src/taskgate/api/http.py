"""The few things that a hot route needs of HTTP, on plain ASGI messages."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from taskgate.api.problems import Header, Problem, invalid

JSON_HEADER: Header = (b"content-type", b"application/json")
MAX_WAIT = 55.0
DRAIN_SECONDS = 10.0
MAX_UNKNOWN = 20
BODY_SECONDS = 60.0
"""A client that sends nothing of its body for so long is given up."""

_NUMBER = re.compile(r"\d{1,6}(\.\d{1,6})?")
_PREFER_WAIT = re.compile(rb"(?:^|[,;\s])wait=(\d{1,6})\s*(?:$|[,;])", re.IGNORECASE)


class Disconnected(Exception):
    """The client went away; nobody is there to answer."""


async def respond(send: Send, status: int, body: bytes, headers: Sequence[Header] = (JSON_HEADER,)) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """The whole body. Raises Problem 413 as soon as it is known to be over `limit` bytes, 408, and Disconnected."""
    announced = headers.get(b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        if b"expect" not in headers:
            await _drain(receive, limit)
        raise _too_large(limit)
    message = await _part(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body") and len(body) <= limit:
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await _part(receive)
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            break
        parts.append(part)
    if size > limit:
        if message.get("more_body"):
            await _drain(receive, limit)
        raise _too_large(limit)
    return b"".join(parts)


async def _part(receive: Receive) -> Message:
    try:
        if _is_here(receive):  # the common case, and a clock costs as much as the reading
            message = await receive()
        else:
            async with asyncio.timeout(BODY_SECONDS):
                message = await receive()
    except TimeoutError:
        raise Problem(
            408,
            "body_timeout",
            f"Nothing more of the body came for {BODY_SECONDS:g} seconds; nothing was written. Send it again.",
            headers=[(b"connection", b"close")],
        ) from None
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message


def _is_here(receive: Receive) -> bool:
    """Whether the rest of the body has arrived, as far as this server (uvicorn) says so."""
    return getattr(getattr(receive, "__self__", None), "more_body", True) is False


async def _drain(receive: Receive, limit: int) -> None:
    """Read on for a while: a client that is still sending when the connection closes would not see the answer."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < 4 * limit:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"The body is over the limit of {limit} bytes. Send less at once, or raise TASKGATE_MAX_BODY_BYTES.",
    )


def query(scope: Scope, known: Collection[str]) -> dict[str, str]:
    """The query parameters; the last of several of one name. Raises Problem for a name that is not known, and for
    bytes that are not UTF-8.
    """
    raw: bytes = scope.get("query_string", b"")
    if not raw:
        return {}
    try:
        parameters = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict"))
    except (UnicodeDecodeError, ValueError) as error:
        raise invalid_parameter("", "the query is not percent-encoded UTF-8") from error
    unknown = [name for name in parameters if name not in known]
    if unknown:
        why = f"is not known here; these are: {', '.join(known)}" if known else "is not known: there are none here"
        errors = [(f"?{name[:100]}", why) for name in unknown[:MAX_UNKNOWN]]
        raise Problem(422, "unknown_parameter", f"Query parameter {unknown[0][:100]} {why}.", errors=errors)
    return parameters


def invalid_parameter(name: str, why: str) -> Problem:
    detail = f"Query parameter {name}: {why}." if name else f"The URL is wrong: {why}."
    return invalid("invalid_parameter", detail, f"?{name}" if name else "", status=422)


def wait_seconds(parameters: dict[str, str], headers: dict[bytes, bytes] | None = None) -> float:
    """How long to hold the answer: `?wait=`, else `Prefer: wait=N` (a preference: cut to 55 s). 0: not at all."""
    text = parameters.get("wait")
    if text is not None:
        if not _NUMBER.fullmatch(text) or float(text) > MAX_WAIT:
            raise invalid_parameter("wait", f"give seconds from 0 to {MAX_WAIT:g}")
        return float(text)
    preference = headers.get(b"prefer") if headers else None
    if preference is not None and (match := _PREFER_WAIT.search(preference)):
        return min(float(match[1]), MAX_WAIT)
    return 0.0


def includes(parameters: dict[str, str], allowed: Sequence[str]) -> set[str]:
    """The parts that `?include=a,b` asks for."""
    wanted = {part.strip() for part in parameters.get("include", "").split(",")} - {""}
    if not wanted <= set(allowed):
        raise invalid_parameter("include", f"know only {', '.join(allowed)}")
    return wanted


def scope_headers(scope: Scope) -> dict[bytes, bytes]:
    headers: Any = scope["headers"]
    return dict(headers)
