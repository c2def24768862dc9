"""The queue options that ride in the body's reserved key: `"taskgate": {…}`. Refused if unknown, never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from math import isinf
from typing import Any

import msgspec

from taskgate.api.problems import Problem, escape
from taskgate.meant import meant

RESERVED = "taskgate"
NOT_BUILT = frozenset({"callback_url"})
MAX_DELAY_SECONDS = 10 * 365 * 86400
MAX_METADATA_BYTES = 16 * 1024
MAX_KEY_LENGTH = 255

_TASK_ID = re.compile(r"(?=.{1,200}\Z)\.*[A-Za-z0-9_:-][A-Za-z0-9_.:-]*")
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UPSTREAM = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


@dataclass(slots=True)
class Options:
    """Checked options: the id and the idempotency key that the caller brought, and what goes to the database."""

    task_id: str | None
    idempotency_key: str | None
    values: dict[str, Any]


def _number(low: int, high: int, *, above: bool = False) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if not known or not low <= value <= high or (above and value == low):
            return f"must be a number {'above' if above else 'from'} {low} {'up ' if above else ''}to {high}"
        return None

    return check


def _integer(low: int, high: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        known = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if known else f"must be an integer from {low} to {high}"

    return check


def _time(value: Any) -> str | None:
    try:
        known = isinstance(value, str) and _RFC3339.fullmatch(value) is not None
        known = known and 1970 <= datetime.fromisoformat(value.upper()).year <= 2200
    except ValueError:
        known = False
    return None if known else 'must be a time with an offset as in RFC 3339, such as "2030-01-31T08:00:00+01:00"'


def _task_id(value: Any) -> str | None:
    known = isinstance(value, str) and _TASK_ID.fullmatch(value) is not None
    return None if known else "must be 1 to 200 characters of A-Z a-z 0-9 _ . : -, not dots alone"


def _key(value: Any) -> str | None:
    known = isinstance(value, str) and 0 < len(value) <= MAX_KEY_LENGTH and value.isprintable()
    return None if known else f"must be 1 to {MAX_KEY_LENGTH} printable characters"


def _metadata(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _upstream(value: Any) -> str | None:
    known = isinstance(value, str) and _UPSTREAM.fullmatch(value) is not None
    return None if known else "must be the name of an upstream: 1 to 100 of a-z 0-9 _ . -"


CHECKS: dict[str, Callable[[Any], str | None]] = {
    "task_id": _task_id,
    "priority": _integer(0, 9),
    "delay_seconds": _number(0, MAX_DELAY_SECONDS),
    "run_at": _time,
    "start_within_seconds": _number(0, MAX_DELAY_SECONDS, above=True),
    "timeout_seconds": _number(0, 30 * 86400, above=True),
    "max_attempts": _integer(1, 1000),
    "metadata": _metadata,
    "upstream": _upstream,
    "idempotency_key": _key,
}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Queue options. This key is taken out before the request is stored.",
    "properties": {
        "task_id": {
            "type": "string",
            "pattern": r"^\.*[A-Za-z0-9_:-][A-Za-z0-9_.:-]*$",
            "maxLength": 200,
            "description": "An id of your own; 409 if it is taken.",
        },
        "priority": {"type": "integer", "minimum": 0, "maximum": 9, "default": 4, "description": "9 goes first."},
        "delay_seconds": {"type": "number", "minimum": 0, "maximum": MAX_DELAY_SECONDS},
        "run_at": {"type": "string", "format": "date-time", "description": "Not before this time."},
        "start_within_seconds": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_DELAY_SECONDS,
            "description": "Fails with `expired` if it has not started by then.",
        },
        "timeout_seconds": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 30 * 86400,
            "description": "One attempt.",
        },
        "max_attempts": {"type": "integer", "minimum": 1, "maximum": 1000},
        "metadata": {"type": "object", "description": "Yours: stored and shown, not read."},
        "upstream": {
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9_.-]{0,99}$",
            "description": "Where its call goes; else the model says.",
        },
        "idempotency_key": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_LENGTH,
            "description": "The same key and submission answer with the same task; another submission: 422.",
        },
    },
    "additionalProperties": False,
}


def parse_options(given: Any, text: msgspec.Raw) -> Options:
    """`text` is what `given` was decoded from: metadata goes on as it was written, since a double would lose digits.

    Raises Problem that names every option that is wrong, unknown or not built yet.
    """
    if not isinstance(given, dict):
        raise _refused("invalid_option", [(f"/{RESERVED}", "must be an object of options")])
    not_built = sorted(given.keys() & NOT_BUILT)
    if not_built:
        why = "is not built yet: leave it out"
        raise _refused("option_not_built", [(f"/{RESERVED}/{name}", why) for name in not_built])
    unknown = [name for name in given if name not in CHECKS]
    if unknown:
        raise _refused("unknown_option", [(f"/{RESERVED}/{escape(name)}", _unknown(name)) for name in unknown])
    verdicts = [(f"/{RESERVED}/{name}", CHECKS[name](value)) for name, value in given.items()]
    errors = [(place, wrong) for place, wrong in verdicts if wrong is not None]
    if "run_at" in given and "delay_seconds" in given:
        errors.append((f"/{RESERVED}/run_at", "give run_at or delay_seconds, not both"))
    values = dict(given)
    if isinstance(given.get("metadata"), dict):
        place = f"/{RESERVED}/metadata"
        values["metadata"], wrong = _exact(_RAW_OBJECT.decode(text)["metadata"])
        errors += [(place, wrong)] if wrong else []
        errors += [
            (f"{place}{each}", "is a number beyond what a double holds") for each in _infinite(given["metadata"])
        ]
    if errors:
        raise _refused("invalid_option", errors)
    return Options(values.pop("task_id", None), values.pop("idempotency_key", None), values)


def _unknown(name: str) -> str:
    found = meant(name, CHECKS)
    return f"is no option{f'; did you mean {found}?' if found else ''}; these are: {', '.join(CHECKS)}"


def _exact(metadata: msgspec.Raw) -> tuple[msgspec.Raw, str | None]:
    """The text without white space, and what is wrong with it."""
    text = msgspec.json.format(bytes(metadata), indent=-1)
    wrong = f"must be at most {MAX_METADATA_BYTES} bytes of JSON" if len(text) > MAX_METADATA_BYTES else None
    return msgspec.Raw(text), wrong


def _infinite(value: Any, place: str = "") -> Iterator[str]:
    """Pointers to the numbers that became infinite when they were read."""
    if isinstance(value, float) and isinf(value):
        yield place
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        if isinstance(item, float | dict | list):
            yield from _infinite(item, f"{place}/{escape(key)}")


def _refused(code: str, errors: list[tuple[str, str]]) -> Problem:
    place, why = errors[0]
    return Problem(422, code, f"{place[1:].replace('/', '.')} {why}", errors=errors)
