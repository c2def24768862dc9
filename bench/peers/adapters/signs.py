"""What an adapter tells the harness: one JSON object a line on standard output. Standard library only."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

DSN = os.environ.get("PEER_DSN", "")
REDIS = os.environ.get("PEER_REDIS", "")
COUNT = int(os.environ.get("PEER_COUNT", "0"))  # jobs to submit, or to wait for
SLOTS = int(os.environ.get("PEER_SLOTS", "1"))
LIMIT = int(os.environ.get("PEER_LIMIT", "0"))  # of the whole fleet, where the peer has one; 0: none
CHUNK = int(os.environ.get("PEER_CHUNK", "1000"))  # jobs a call of the bulk interface
PAUSE = float(os.environ.get("PEER_PAUSE", "0.02"))  # seconds between two jobs of the latency measurement


def say(**fields: Any) -> None:
    """In one write, so that the lines of threads do not mix."""
    os.write(1, json.dumps(fields).encode() + b"\n")


def payload() -> dict[str, float]:
    """A small request that knows when it was submitted."""
    return {"sent": time.time()}


def chunks() -> Iterator[int]:
    """Sizes of the bulk calls that make up COUNT."""
    for start in range(0, COUNT, CHUNK):
        yield min(CHUNK, COUNT - start)


class Jobs:
    """Counts what the handler runs; safe in threads, since one `next` of a C iterator is one step."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._latencies = os.environ.get("PEER_LATENCIES") == "1"

    def ran(self, sent: float | None = None) -> None:
        now = time.time()
        number = next(self._numbers)
        if self._latencies:
            say(event="started", ms=(now - (sent or now)) * 1000)
        if number == 1:
            say(event="first", at=now)
        if number >= COUNT:
            say(event="ran", at=now, jobs=number)
