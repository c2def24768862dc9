"""Threads for calls that may never return (handlers that are plain functions, parsing of large bodies). Daemons: one
that hangs cannot keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

Outcome = tuple[Any, BaseException | None]
Job = tuple[asyncio.Future[Outcome], contextvars.Context, Callable[[Any], Any], Any]


class DaemonThreads:
    """Up to `size` threads, each started when there is none idle for a call."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._busy = 0

    @property
    def busy(self) -> int:
        """Calls that are waiting or running."""
        return self._busy

    def submit(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Outcome]:
        """Call `function(argument)` in a thread, in a copy of this context; the future is of its value and error.

        (A future cannot carry every exception: StopIteration, GeneratorExit.)
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._busy += 1
            start = self._busy > self._started and self._started < self._size
            self._started += start
        self._jobs.put((future, contextvars.copy_context(), function, argument))
        if start:
            threading.Thread(target=self._work, name=f"handler-{self._started}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, context, function, argument = self._jobs.get()
            value, error = None, None
            try:
                value = context.run(function, argument)
            except BaseException as caught:  # SystemExit too: it must not end this thread
                error = caught
            with self._lock:
                self._busy -= 1
            try:
                future.get_loop().call_soon_threadsafe(_deliver, future, (value, error))
            except RuntimeError:
                return  # the loop is closed: the process is ending
            del future, context, function, argument, value, error


def _deliver(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
