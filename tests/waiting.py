"""Waiting for what will be true soon. The deadlines are those of a busy machine, not a measure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LONG = 60.0  # seconds


def until(what: str, probe: Callable[[], T | None], seconds: float = LONG) -> T:
    """The first true answer of `probe`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"in vain for {what}"
        time.sleep(0.05)
    return answer


async def happens(condition: Callable[[], Any], seconds: float = LONG) -> None:
    """Until the condition holds, while this event loop runs on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
