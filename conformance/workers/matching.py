"""Comparing what was found with what a case expects of it."""

from __future__ import annotations

import json
import re
from typing import Any


def mismatch(expected: Any, found: Any, place: str = "") -> str | None:
    """None if `found` is as expected, else what is not.

    An expected object may have further keys in what was found; a list is compared item by item.
    Operators: {"$match": regex} {"$any": true} {"$set": true} {"$length": n} {"$in": [a, b]} {"$between": [from, to]}
    {"$contains": text} {"$ordered": value} (the same JSON, in the same order of keys).
    """
    if isinstance(expected, dict) and len(expected) == 1:
        (name, value), *_ = expected.items()
        if name.startswith("$"):
            good = _operator(name, value, found)
            return None if good else f"{place}: {_short(found)} is not {_short(expected)}"
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return f"{place}: expected an object, found {_short(found)}"
        for key, value in expected.items():
            wrong = mismatch(value, found.get(key), f"{place}/{key}")
            if wrong is not None:
                return wrong
        return None
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return f"{place}: expected {len(expected)} items, found {_short(found)}"
        wrongs = (mismatch(e, f, f"{place}/{i}") for i, (e, f) in enumerate(zip(expected, found, strict=True)))
        return next((wrong for wrong in wrongs if wrong is not None), None)
    if expected != found or isinstance(expected, bool) != isinstance(found, bool):
        return f"{place}: expected {_short(expected)}, found {_short(found)}"
    return None


def _operator(name: str, value: Any, found: Any) -> bool:
    match name:
        case "$any":
            return True
        case "$match":
            return isinstance(found, str) and re.search(value, found) is not None
        case "$set":
            return found is not None
        case "$contains":
            return isinstance(found, str) and value in found
        case "$length":
            return isinstance(found, list | str | dict) and len(found) == value
        case "$in":
            return any(mismatch(each, found) is None for each in value)
        case "$between":
            low, high = value
            return isinstance(found, int | float) and low <= found and (high is None or found <= high)
        case "$ordered":
            return json.dumps(value) == json.dumps(found)
    raise ValueError(f"unknown operator {name}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 600 else text[:600] + "…"
