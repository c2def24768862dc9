"""What a name that is not known may have been meant as."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LIKENESS = 0.6
"""`word` and `words` come to 0.89, `txt` and `text` to 0.86, `duration` and `resolution` to 0.56."""


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that goes on where this one ends (delay, delay_seconds), else the one that looks most like it."""
    known = list(known)
    longer = [each for each in known if each.startswith(f"{name}_")]
    return next(iter(longer or get_close_matches(name[:100], known, 1, LIKENESS)), None)
