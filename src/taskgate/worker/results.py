"""Values of handlers as JSON text that the database takes, and texts of errors likewise."""

from __future__ import annotations

import json
import re
from typing import Any

from taskgate.task import PermanentError

MAX_ERROR_CHARS = 2_000
MAX_INFO_BYTES = 64 * 1024

NO_WORDS = "(its text cannot be had)"
"""Where an exception or a value raises when asked for its text."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def _jsonable(value: Any) -> Any:
    """Models, dataclasses, dates, sets and the like."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_jsonable).encode


def clean_text(text: str) -> str:
    """`text` without NUL characters and lone surrogates, which PostgreSQL cannot store."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def error_text(text: str) -> str:
    """`text` fit for the column `error`: clean, and cut to MAX_ERROR_CHARS."""
    text = clean_text(text)
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"


def words(value: object) -> str:
    """`str(value)`, whatever its `__str__` does: an outcome must be written even if it cannot be described."""
    try:
        return str.__str__(str(value))  # no subclass of str
    except BaseException:  # SystemExit and the like too; there is no await in here, so nothing of ours
        return NO_WORDS


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def to_json(value: Any) -> tuple[str, int]:
    """JSON text and its size in bytes. Raises TypeError, ValueError or RecursionError for what is not JSON."""
    text = _encode(value)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        size = -1
    if size < 0 or "\\u0000" in text:  # maybe a NUL, maybe only a backslash followed by these letters
        text = _encode(_clean(json.loads(text)))
        size = len(text.encode())
    return text, size


def result_text(value: Any, max_bytes: int) -> str:
    """A handler's result as JSON text. Raises PermanentError: `result_not_json` or `result_too_large`."""
    if value is None:
        return "null"
    try:
        text, size = to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PermanentError(
            f"the handler's result ({type(value).__name__}) is not JSON: {words(error)[:300]}", code="result_not_json"
        ) from None
    if size > max_bytes:
        raise PermanentError(
            f"the handler's result has {size} bytes as JSON, more than TASKGATE_MAX_RESULT_BYTES ({max_bytes}); "
            "store it elsewhere and return where it is",
            code="result_too_large",
            info={"bytes": size, "max_bytes": max_bytes},
        )
    return text


def info_text(info: Any) -> str | None:
    """What is kept with an attempt, as JSON text; never fails, cut where it is too much."""
    if info is None:
        return None
    try:
        text, size = to_json(info)
    except BaseException:  # what runs here is the handler's own code: __repr__, properties, iterators
        return to_json({"text": error_text(_shown(info))})[0]
    return text if size <= MAX_INFO_BYTES else to_json({"truncated": True, "text": text[:MAX_ERROR_CHARS]})[0]


def _shown(value: object) -> str:
    try:
        return str.__str__(repr(value))
    except BaseException:
        return NO_WORDS
