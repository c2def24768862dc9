"""Loops that must not end for an error nobody thought of: it is told, and after a pause they go on."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable

from taskgate.logs import get_logger
from taskgate.protocol.version import SchemaMismatch
from taskgate.worker.link import Backoff
from taskgate.worker.results import words

log = get_logger("worker")


async def kept_going(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` until it returns; begin it again when it raises. Raises only SchemaMismatch and cancellation."""
    backoff = Backoff(0.1, 5.0)
    while True:
        try:
            await work()
        except SchemaMismatch:
            raise
        except Exception as error:
            say_failed(name, error)
            await asyncio.sleep(backoff.next())
        else:
            return


def say_failed(name: str, error: Exception) -> None:
    """Log an error that only a defect of this program can cause. Raises nothing, even where the log fails."""
    with contextlib.suppress(Exception):
        trace = "".join(traceback.format_exception(error))[-4_000:]
        log.error("loop_failed", loop=name, error=f"{type(error).__name__}: {words(error)}", exception=trace)
