"""What a producer submits: the body with its queue options, checked before anything is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

TASK_ID = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.:-]{1,200}\Z")
UPSTREAM = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}\Z")
DEEPEST = 100
OPTIONS_KEY = "taskgate"
CHUNK = 1000
CHUNK_BYTES = 4 * 1024**2

Request = str | Mapping[str, Any]
"""A request; a plain string is short for {"prompt": …}."""


@dataclass(frozen=True, slots=True)
class Options:
    """Queue options of a task; None leaves the service's default.

    `priority` 0 to 9, 9 goes first, 4 is the default. Times are seconds; `run_at` carries its offset.
    """

    task_id: str | None = None
    priority: int | None = None
    delay_seconds: float | None = None
    run_at: datetime | None = None
    start_within_seconds: float | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    metadata: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    """1 to 255 characters: the same key and submission answer with the same task, as long as that is there."""
    upstream: str | None = None
    """Where its call goes; else the model says."""

    def given(self) -> dict[str, Any]:
        """The options that were set, as JSON values. Raises ValueError for one that cannot be."""
        values: dict[str, Any] = {}
        if self.task_id is not None:
            if not isinstance(self.task_id, str) or not TASK_ID.match(self.task_id):
                raise ValueError("task_id must be 1 to 200 characters of A-Z a-z 0-9 _ . : -, not dots alone")
            values["task_id"] = self.task_id
        for name, lowest, highest in (("priority", 0, 9), ("max_attempts", 1, 1000)):
            number = getattr(self, name)
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= highest:
                raise ValueError(f"{name} must be a whole number from {lowest} to {highest}")
            values[name] = number
        for name, zero in (("delay_seconds", True), ("start_within_seconds", False), ("timeout_seconds", False)):
            seconds = getattr(self, name)
            if seconds is None:
                continue
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e10:
                raise ValueError(f"{name} must be a number of seconds")
            if seconds == 0 and not zero:
                raise ValueError(f"{name} must be more than 0 seconds")
            values[name] = seconds
        if self.run_at is not None:
            if self.delay_seconds is not None:
                raise ValueError("give run_at or delay_seconds, not both")
            if not isinstance(self.run_at, datetime) or self.run_at.tzinfo is None:
                raise ValueError("run_at must be a datetime with a time zone")
            values["run_at"] = self.run_at.isoformat()
        if self.metadata is not None:
            if not isinstance(self.metadata, Mapping):
                raise ValueError("metadata must be an object")
            values["metadata"] = dict(self.metadata)
        if self.idempotency_key is not None:
            key = self.idempotency_key
            if not isinstance(key, str) or not 0 < len(key) <= 255 or not key.isprintable():
                raise ValueError("idempotency_key must be 1 to 255 printable characters")
            values["idempotency_key"] = key
        if self.upstream is not None:
            if not isinstance(self.upstream, str) or not UPSTREAM.match(self.upstream):
                raise ValueError("upstream must be the name of one: 1 to 100 of a-z 0-9 _ . -")
            values["upstream"] = self.upstream
        return values


class SubmitOptions(TypedDict, total=False):
    """Queue options as keyword arguments; what they mean: Options."""

    task_id: str | None
    priority: int | None
    delay_seconds: float | None
    run_at: datetime | None
    start_within_seconds: float | None
    timeout_seconds: float | None
    max_attempts: int | None
    metadata: Mapping[str, Any] | None
    idempotency_key: str | None
    upstream: str | None


def request_of(request: Request) -> dict[str, Any]:
    """A request; a plain string is short for {"prompt": …}. Raises ValueError for anything else."""
    if isinstance(request, str):
        return {"prompt": request}
    if isinstance(request, Mapping):
        return dict(request)
    raise ValueError(f"a request is an object or a prompt, not {type(request).__name__}")


@dataclass(frozen=True, slots=True)
class Body:
    """A body for the HTTP interface as JSON text, with what it carries that makes a repeat safe."""

    text: str
    task_id: str | None
    has_key: bool
    """It has an idempotency key."""


def body_of(request: Request, options: Options) -> Body:
    """The body of a submission. Raises ValueError.

    `options` go over those in the request's own reserved key `taskgate`.
    """
    body = request_of(request)
    given = options.given()
    own = body.get(OPTIONS_KEY)
    if given:
        if own is not None and not isinstance(own, Mapping):
            raise ValueError("the request's key `taskgate` is reserved for queue options and must be an object")
        body[OPTIONS_KEY] = {**(own or {}), **given}
    final = body.get(OPTIONS_KEY)
    final = final if isinstance(final, Mapping) else {}
    task_id = final.get("task_id")
    return Body(json_text(body), task_id if isinstance(task_id, str) else None, "idempotency_key" in final)


def json_text(value: Any) -> str:
    """JSON text in the order of the keys. Raises ValueError, with a JSON Pointer, for what PostgreSQL or JSON refuses.

    Refused: NUL characters and lone surrogates in texts and keys, NaN and infinities, keys that are no
    strings, values that are no JSON, and nesting deeper than 100.
    """
    _check(value, "", 1)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict)


def _check(value: Any, pointer: str, depth: int) -> None:
    place = pointer or "the request"
    if isinstance(value, str):
        _check_text(value, place)
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{place}: {value} is no JSON number")
    elif value is None or isinstance(value, (bool, int)):
        return
    elif depth > DEEPEST:
        raise ValueError(f"{place}: nested deeper than {DEEPEST} levels")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{place}: the key {key!r} is no string")
            below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            _check_text(key, f"a key of {place}")
            _check(inner, below, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check(inner, f"{pointer}/{index}", depth + 1)
    else:
        raise ValueError(f"{place}: {type(value).__name__} is no JSON value")


def _check_text(text: str, place: str) -> None:
    if "\0" in text:
        raise ValueError(f"{place}: contains a NUL character, which PostgreSQL cannot keep; remove it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: contains a lone surrogate, which is no text; remove it") from None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of many bodies, to be sent as one request that is taken as a whole or not at all."""

    first: int
    """The place of its first body among all of them."""
    lines: list[str]
    task_ids: list[str | None]
    keyed: bool = False
    """Each has an idempotency key."""

    @property
    def content(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def many_chunks(requests: Iterable[Request], options: SubmitOptions, most: int) -> Iterator[Chunk]:
    """The chunks of submit_many. Raises ValueError for what makes no sense there."""
    if most < 1:
        raise ValueError("chunk must be at least 1")
    if options.get("task_id") is not None:
        raise ValueError('many tasks cannot share a task_id: give each its own, {"taskgate": {"task_id": …}}')
    if options.get("idempotency_key") is not None:
        raise ValueError(
            'many tasks cannot share an idempotency_key: give each its own, {"taskgate": {"idempotency_key": …}}'
        )
    return chunks(requests, Options(**options), most=most, most_bytes=CHUNK_BYTES)


def chunks(requests: Iterable[Request], options: Options, *, most: int, most_bytes: int) -> Iterator[Chunk]:
    """Bodies in order, in chunks of at most `most` bodies and about `most_bytes`. Raises ValueError as `/7: …`."""
    first, size, lines, ids, keyed = 0, 0, list[str](), list[str | None](), True
    for place, request in enumerate(requests):
        try:
            body = body_of(request, options)
        except ValueError as error:
            raise ValueError(f"item {place}: {error}") from None
        length = len(body.text.encode()) + 1
        if lines and (len(lines) >= most or size + length > most_bytes):
            yield Chunk(first, lines, ids, keyed)
            first, size, lines, ids, keyed = place, 0, [], [], True
        lines.append(body.text)
        ids.append(body.task_id)
        keyed = keyed and body.has_key
        size += length
    if lines:
        yield Chunk(first, lines, ids, keyed)
