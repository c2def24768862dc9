"""The watchdog: a thread that hears signals, and ends the process where a handler blocks the event loop for ever.

An `async def` handler that never awaits cannot be stopped: nothing else runs in that loop, its time limit neither.
After the longest time limit of what runs, and a while, the process exits with code 70: the leases run out, others
take the tasks back (an attempt is counted), and whoever started the worker starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from typing import Any

from taskgate.logs import get_logger
from taskgate.worker.loops import say_failed
from taskgate.worker.run import Run
from taskgate.worker.signals import Signals

log = get_logger("worker")

EXIT_BLOCKED = 70
"""EX_SOFTWARE of sysexits.h."""
TICK_SECONDS = 0.5
BLOCKED_SECONDS = 1.0
"""A worker's loop that does not answer for so long is reported once it does."""
PATIENCE_SECONDS = 10.0
"""So long, or a lease, beyond the longest time limit of what runs the loop may be blocked."""
AFTER_GRACE_SECONDS = 3.0
"""A drain of a blocked loop ends so long after the grace."""
DRAIN_SECONDS = 25.0
"""No drain takes longer than this after the grace, whatever keeps it."""
STOP_NOW_SECONDS = 8.0
"""Nor this after a second signal."""


class Watchdog:
    """Watches the event loop that it is made in. `runs` is the runner's table."""

    def __init__(self, runs: dict[int, Run], signals: Signals, *, lease: float, timeout: float, grace: float) -> None:
        self._runs = runs
        self._signals = signals
        self._lease = lease
        self._timeout = timeout
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._asked = False
        self._blocked = self._draining = self._stopping = 0.0
        self._ended = False

    def start(self) -> None:
        threading.Thread(target=self._in_thread, name="watchdog", daemon=True).start()

    def end(self) -> None:
        """The worker has stopped. After a signal the thread stays: the process itself has still to end."""
        self._ended = not self._signals.heard

    def _in_thread(self) -> None:
        before = time.monotonic()
        while not self._ended:
            try:
                self._signals.listen(TICK_SECONDS)
                at = time.monotonic()
                # time in which this thread stood still as well (a suspended machine, SIGSTOP) counts for nothing
                self._look(min(at - before, 2 * TICK_SECONDS))
                before = at
            except Exception as error:
                say_failed("watchdog", error)
                time.sleep(TICK_SECONDS)

    def _look(self, passed: float) -> None:
        heard = self._signals.heard
        self._draining += passed if heard else 0.0
        self._stopping += passed if heard > 1 else 0.0
        if self._asked:
            self._blocked += passed
        elif self._runs or heard:
            self._ask()
        is_blocked = self._asked and self._blocked > BLOCKED_SECONDS
        if heard > 2 or (heard > 1 and is_blocked) or self._stopping > STOP_NOW_SECONDS:
            self._exit(128 + self._signals.number, is_blocked)
        if (is_blocked and self._draining > self._grace + AFTER_GRACE_SECONDS) or (
            self._draining > self._grace + DRAIN_SECONDS
        ):
            self._exit(EXIT_BLOCKED, is_blocked)
        if is_blocked and self._blocked > self._bound():
            self._exit(EXIT_BLOCKED, is_blocked)

    def _bound(self) -> float:
        limits = [run.timeout for run in self._running() if run.is_async]
        return max(limits, default=self._timeout) + max(PATIENCE_SECONDS, self._lease)

    def _running(self) -> list[Run]:
        return [run for run in list(self._runs.values()) if run.started and not run.ended]

    def _ask(self) -> None:
        self._blocked = 0.0
        self._asked = True
        try:
            self._loop.call_soon_threadsafe(self._answered)
        except RuntimeError:  # closed
            self._asked = False

    def _answered(self) -> None:
        """On the worker's loop."""
        self._asked = False
        if self._blocked > BLOCKED_SECONDS:
            log.warning("handler_blocked_loop", seconds=round(self._blocked, 3))

    def _exit(self, code: int, is_blocked: bool) -> None:
        last = threading.Timer(2.0, os._exit, (code,))  # should the log be what blocks
        last.daemon = True
        last.start()
        running: list[dict[str, Any]] = [run.log_fields() for run in self._running()[:20]]
        with contextlib.suppress(Exception):
            if is_blocked:
                log.error("handler_blocked_loop", seconds=round(self._blocked, 3), running=running, exit_code=code)
            else:
                log.error("stop_overdue", seconds=round(self._draining, 3), running=running, exit_code=code)
            sys.stderr.flush()
        os._exit(code)
