"""The clock that leases are counted by: it runs on while the machine sleeps, where the system has such a one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial


def _boot_clock() -> Callable[[], float]:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:  # macOS: its monotonic clock stops during sleep, so this is the best there is
        return time.monotonic
    return partial(time.clock_gettime, clock)


now: Callable[[], float] = _boot_clock()
"""Seconds since some fixed moment, suspend included."""
