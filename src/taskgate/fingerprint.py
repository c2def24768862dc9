"""What tells two submissions under one idempotency key apart, the same over HTTP and in a caller's transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

OF_THE_REQUEST = ("tenant", "traceparent")
"""Options that come with the HTTP request, not from its body: a repeat may differ in them."""

_sorted = msgspec.json.Encoder(order="sorted").encode


def fingerprint(
    task_type: str, request: Mapping[str, Any], options: Mapping[str, Any] | None, own_id: str | None
) -> str:
    """A hash of type, request and options, whatever their spelling in JSON; `own_id` is an id the caller brought."""
    given = {name: value for name, value in (options or {}).items() if name not in OF_THE_REQUEST}
    return hashlib.sha256(_sorted(_numbers([task_type, request, given, own_id]))).hexdigest()


def _numbers(value: Any) -> Any:
    """1.0 is 1, as it is to JSON."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(item) for item in value]
    return value


def of_all(fingerprints: Sequence[str]) -> str:
    """The fingerprint of a body of many."""
    return hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()
