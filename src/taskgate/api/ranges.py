"""What part of a medium is asked for (RFC 9110, 13 and 14): Range, If-Range, If-None-Match."""

from __future__ import annotations

import re

_ONE_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,100})\s*-\s*(\d{0,100})\s*", re.IGNORECASE)


class NotSatisfiable(Exception):
    """The range lies behind the end."""


def asked_range(text: str | None, if_range: str | None, etag: str, size: int) -> tuple[int, int] | None:
    """Start and end (exclusive), None for all of it: also for several ranges, or what cannot be read.

    `if_range` must be this very tag; a date never is. Raises NotSatisfiable.
    """
    match = _ONE_RANGE.fullmatch(text) if text is not None else None
    if match is None or match[1] == match[2] == "" or (if_range is not None and if_range.strip() != etag):
        return None
    if match[1] == "":  # the last so many bytes
        length = min(int(match[2]), size)
        if length == 0:
            raise NotSatisfiable
        return size - length, size
    start, last = int(match[1]), int(match[2]) if match[2] else size - 1
    if match[2] and last < start:
        return None
    if start >= size:
        raise NotSatisfiable
    return start, min(last, size - 1) + 1


def is_known(if_none_match: str | None, etag: str) -> bool:
    """Whether the caller has it already."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags
