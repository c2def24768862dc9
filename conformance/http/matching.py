"""Comparing an answer with what a case expects of it."""

from __future__ import annotations

import re
from typing import Any


def mismatch(expected: Any, found: Any, place: str = "") -> str | None:
    """None if `found` is as expected, else what is not. Objects may have further keys; see README.md for operators."""
    if isinstance(expected, dict) and len(expected) == 1:
        (name, value), *_ = expected.items()
        if name == "$match":
            good = isinstance(found, str) and re.search(value, found) is not None
            return None if good else f"{place}: {found!r} does not match {value!r}"
        if name == "$any":
            return None
        if name == "$length":
            good = isinstance(found, list | str | dict) and len(found) == value
            return None if good else f"{place}: not of length {value}: {found!r}"
        if name == "$has":
            good = isinstance(found, list) and any(mismatch(value, each) is None for each in found)
            return None if good else f"{place}: nothing in {found!r} is like {value!r}"
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return f"{place}: expected an object, found {found!r}"
        for key, value in expected.items():
            if value == {"$absent": True}:
                if key in found:
                    return f"{place}/{key}: should be absent"
                continue
            if key not in found:
                return f"{place}/{key}: is missing"
            wrong = mismatch(value, found[key], f"{place}/{key}")
            if wrong is not None:
                return wrong
        return None
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return f"{place}: expected {len(expected)} items, found {found!r}"
        wrongs = (mismatch(e, f, f"{place}/{i}") for i, (e, f) in enumerate(zip(expected, found, strict=True)))
        return next((wrong for wrong in wrongs if wrong is not None), None)
    if expected != found or isinstance(expected, bool) != isinstance(found, bool):
        return f"{place}: expected {expected!r}, found {found!r}"
    return None


def value_at(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer. Raises LookupError."""
    for token in filter(None, pointer.split("/")):
        document = document[int(token)] if isinstance(document, list) else document[token]
    return document
