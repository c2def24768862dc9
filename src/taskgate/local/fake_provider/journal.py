"""What the fake provider saw: counts that are exact, and a log of the latest requests."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from typing import Any

KEYS = (b"authorization", b"x-goog-api-key")
KEPT_BODIES_BYTES = 64 * 1024**2


class Entry:
    """One request in the log. Times are seconds since 1970 by this machine's clock."""

    __slots__ = (
        "authorization",
        "body",
        "bytes",
        "closed_by_client",
        "headers",
        "key",
        "model",
        "n",
        "outcome",
        "prompt",
        "status",
        "stream",
        "time_in",
        "time_out",
    )

    def __init__(self, n: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.n = n
        self.time_in = time.time()
        self.time_out: float | None = None
        self.outcome: str | None = None
        self.status: int | None = None
        self.closed_by_client = False
        self.key: str | None = None
        self.prompt = ""
        self.model: str | None = None
        self.stream = False
        self.bytes = len(body)
        self.body: bytes | None = body
        self.headers = [(name, value) for name, value in headers if name.lower() not in KEYS]
        given = [value for name, value in headers if name.lower() in KEYS]
        # a digest, so that tests can tell keys apart and the log holds none
        self.authorization = hashlib.sha256(given[0]).hexdigest()[:16] if given else None

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("body", "headers")
        }
        values["headers"] = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in self.headers}
        return dict(sorted(values.items(), key=lambda item: item[0] != "n"))


class Journal:
    """Counts a request from when it has arrived whole until its answer is written or the client is gone."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._next = 1
        self.in_flight = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything but the calls in flight, which stay counted."""
        self.requests = self.closed_by_client = 0
        self.max_in_flight = self.in_flight
        self.outcomes: Counter[str] = Counter()
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._bodies: OrderedDict[int, Entry] = OrderedDict()
        self._body_bytes = 0

    def begin(self, headers: list[tuple[bytes, bytes]], body: bytes) -> Entry:
        entry = Entry(self._next, headers, body)
        self._next += 1
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self._entries[entry.n] = self._bodies[entry.n] = entry
        self._body_bytes += entry.bytes
        while len(self._entries) > self._size:
            self._drop_body(self._entries.popitem(last=False)[1])
        while self._body_bytes > KEPT_BODIES_BYTES and self._bodies:
            self._drop_body(next(iter(self._bodies.values())))
        return entry

    def end(self, entry: Entry, outcome: str, *, closed_by_client: bool = False) -> None:
        entry.time_out = time.time()
        entry.outcome, entry.closed_by_client = outcome, closed_by_client
        self.in_flight -= 1
        self.closed_by_client += closed_by_client
        self.outcomes["closed_by_client" if closed_by_client else outcome] += 1

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
            "closed_by_client": self.closed_by_client,
            "outcomes": dict(self.outcomes),
        }

    def log(self, contains: str = "", limit: int | None = None) -> list[dict[str, Any]]:
        found = [each for each in self._entries.values() if contains in each.prompt or contains == each.key]
        return [each.to_json() for each in (found[-limit:] if limit else found)]

    def body(self, n: int) -> bytes | None:
        entry = self._entries.get(n)
        return entry.body if entry else None

    def _drop_body(self, entry: Entry) -> None:
        if self._bodies.pop(entry.n, None) is not None:
            self._body_bytes -= entry.bytes
            entry.body = None
