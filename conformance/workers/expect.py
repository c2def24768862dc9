"""How a case must have ended: the rows, and what the provider saw."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Any

from conformance.workers.matching import mismatch
from conformance.workers.world import DEFAULTS
from taskgate.local.fake_provider import FakeProvider

KEY_DIGEST = hashlib.sha256(f"Bearer {DEFAULTS['OPENAI_API_KEY']}".encode()).hexdigest()[:16]
"""What the provider's log shows of the key."""


def rows_mismatch(expected: dict[str, Any], rows: dict[str, dict[str, Any]]) -> str | None:
    """Each expected row is a subset of its row; `*` is what every task must be like."""
    for name, want in expected.items():
        for each in rows if name == "*" else [name]:
            if each not in rows:
                return f"there is no task {each}"
            wrong = mismatch(want, rows[each], each)
            if wrong is not None:
                row = rows[each]
                return f"{wrong} (status {row['status']}, error {row['error']!r}, attempts {row['attempts_told']!r})"
    return None


def ended(rows: dict[str, dict[str, Any]]) -> str | None:
    """None when every task is completed or failed."""
    open_ones = {name: row["status"] for name, row in rows.items() if row["status"] not in ("completed", "failed")}
    return f"not ended: {open_ones}" if open_ones else None


def calls_of(provider: FakeProvider, name: str) -> list[dict[str, Any]]:
    """The provider's log of the calls that belong to a task, in order of arrival."""
    return provider.journal.log(name)


def logs_mismatch(expected: list[dict[str, Any]], lines: list[dict[str, Any]]) -> str | None:
    """Each expected event must be like some line, docs/reference/log-events.md says what they mean."""
    for want in expected:
        alike = [line for line in lines if line.get("event") == want["event"]]
        if not any(mismatch(want, line) is None for line in alike):
            return f"no line of the log is like {want}; of that event there are {alike}"
    return None


def provider_mismatch(expected: dict[str, Any], provider: FakeProvider, image_requests: int) -> str | None:
    """Compares with the provider's log; the keys are described in conformance/README.md."""
    stats = provider.journal.stats()
    for name in ("requests", "max_in_flight", "closed_by_client"):
        if name in expected and (wrong := mismatch(expected[name], stats[name], f"provider/{name}")) is not None:
            return wrong
    if "video" in expected:
        wrong = mismatch(expected["video"], provider.video.summary(), "provider/video")
        if wrong is not None:
            return wrong
    if "image_requests" in expected:
        wrong = mismatch(expected["image_requests"], image_requests, "image_requests")
        if wrong is not None:
            return wrong
    if "order" in expected:
        arrived = [each["prompt"] for each in provider.journal.log()]
        order = [next((name for name in expected["order"] if name in prompt), prompt) for prompt in arrived]
        if (wrong := mismatch(expected["order"], order, "provider/order")) is not None:
            return wrong
    for name, want in expected.get("tasks", {}).items():
        if (wrong := _calls_mismatch(want, provider, name)) is not None:
            return wrong
    return None


def _calls_mismatch(want: dict[str, Any], provider: FakeProvider, name: str) -> str | None:
    calls = calls_of(provider, name)
    place = f"provider/{name}"
    seen = {
        "calls": len(calls),
        "closed_by_client": sum(call["closed_by_client"] for call in calls),
        "outcomes": [call["outcome"] for call in calls],
        "gaps": [after["time_in"] - (before["time_out"] or after["time_in"]) for before, after in pairwise(calls)],
        "bodies": [json.loads(provider.journal.body(call["n"]) or b"null") for call in calls],
        "with_key": [call["authorization"] == KEY_DIGEST for call in calls],
    }
    return mismatch(want, seen, place)
