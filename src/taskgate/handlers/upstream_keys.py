"""Keys of upstreams, which each worker has for itself: from its environment or a file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from taskgate.task import PermanentError, Upstream


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where calls go and with which key; the names are what errors call them."""

    url: str
    key: str = field(repr=False)
    url_name: str
    key_name: str


def key_digest(key: str) -> str:
    """Tells keys apart, and shows none."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else ""


def key_of(upstream: Upstream) -> str:
    """The key of an upstream, empty where it asks for none. Raises PermanentError `not_configured`."""
    if upstream.key_file:
        try:
            return Path(upstream.key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            words = f"the key of upstream {upstream.name!r} cannot be read from {upstream.key_file}: {error}"
            raise PermanentError(words, code="not_configured") from None
    if not upstream.key_env:
        return ""
    key = os.environ.get(upstream.key_env, "")
    if not key:
        words = f"upstream {upstream.name!r} wants its key in {upstream.key_env}: set it for the worker"
        raise PermanentError(words, code="not_configured")
    return key
