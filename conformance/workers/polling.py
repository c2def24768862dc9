"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_SECONDS = 90.0


class NotAsExpected(Exception):
    """The worker did not do what the case says; the message says what was seen."""


async def until(condition: Callable[[], Awaitable[str | None]], seconds: float = DEADLINE_SECONDS) -> None:
    """Polls until `condition` answers None; its last words are those of the error. Raises NotAsExpected."""
    end = time.monotonic() + seconds
    pause = 0.01
    while (wrong := await condition()) is not None:
        if time.monotonic() > end:
            raise NotAsExpected(f"waited {seconds:g} s in vain: {wrong}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
