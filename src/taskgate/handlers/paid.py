"""Paid calls: notes around them that no stop interrupts, and those whose fate nobody knows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from taskgate.task import LeaseLost, PermanentError, Retry, Task, TaskError

T = TypeVar("T")

AMBIGUOUS = "submit_ambiguous"
UNKNOWN_STATUSES = frozenset({408, 499, 502, 504, *range(520, 525)})
"""Answers of gateways that gave up or lost the connection behind them (520 to 524: Cloudflare's). They say nothing of
the call itself, which may have been taken; 500, 503 and 429 are the provider's own word that it was not.
"""


def ambiguous(why: str, account: Any, *, retry: bool) -> TaskError:
    """The error for a call that may have been taken, and paid: the end of the task, unless `retry`."""
    info = {"submit": {"why": why, "account": account}}
    if retry:
        words = f"the submission may or may not have been taken ({why}): sent again"
        return Retry(words, code="submit_unknown", info=info)
    return PermanentError(AMBIGUOUS, code=AMBIGUOUS, info=info)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises. A stop that comes meanwhile takes effect after it, as CancelledError."""
    doing = asyncio.ensure_future(work)
    stopped = False
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError:
            stopped = True
    if stopped:
        if not doing.cancelled():
            doing.exception()  # taken note of; the reason to stop goes before
        raise asyncio.CancelledError
    return doing.result()


async def announce(task: Task[Any], account: Any, *, retry: bool = False) -> None:
    """`task.intend`. A stop in the middle of it takes the intent back, since nothing was sent."""
    try:
        await to_the_end(task.intend(account, retry=retry))
    except asyncio.CancelledError:
        with contextlib.suppress(LeaseLost):
            await to_the_end(task.withdraw())
        raise
