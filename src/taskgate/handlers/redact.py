"""Words of a provider made fit to be stored: short, without keys and without embedded files."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WORDS = 2000

_KEY = re.compile(r"\b(?:sk|pk|rk|gsk|xai|key)-[A-Za-z0-9_*-]{8,}|\bAIza[A-Za-z0-9_-]{20,}|(?i:\bbearer\s+)\S{8,}")
_DATA = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=_-]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{200,}={0,2}")
_TAG = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^<>]*>", re.DOTALL | re.IGNORECASE)


def redact(words: str, secrets: Iterable[str] = (), limit: int = MAX_WORDS) -> str:
    """The words without keys and base64, on one line, trimmed to `limit` characters."""
    words = words[: 64 * limit]  # so that a huge answer costs little
    for secret in secrets:
        if len(secret) >= 4:
            words = words.replace(secret, "[key]")
    words = _DATA.sub("[data]", words)
    words = _BASE64.sub("[data]", words)
    words = " ".join(_KEY.sub("[key]", words).split())
    # neither can be stored by PostgreSQL
    words = words.replace("\x00", "").encode("utf-8", "replace").decode()
    return words if len(words) <= limit else words[: limit - 1] + "…"


def without_tags(text: str) -> str:
    """The text of an HTML page, such as a proxy's error; anything else as it is."""
    if text.lstrip()[:1] != "<":
        return text
    return _TAG.sub(" ", text[:100_000])
