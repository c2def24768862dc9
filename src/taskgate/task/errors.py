"""The errors by which a handler steers its task, and the one that says that the task is no longer its own."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any


class TaskError(Exception):
    """Base of the errors a handler raises on purpose.

    `code` is a stable short string for machines, `info` any JSON value kept with the attempt
    (for example the provider's own answer).
    """

    code = "handler_error"

    def __init__(self, message: str, *, code: str | None = None, info: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.info = info


class Retry(TaskError):
    """This attempt failed; try again while attempts are left.

    `after` is the delay in seconds (or a timedelta); None means exponential backoff with jitter.
    """

    def __init__(
        self,
        message: str = "retry",
        *,
        after: float | timedelta | None = None,
        code: str | None = None,
        info: Any = None,
    ) -> None:
        super().__init__(message, code=code, info=info)
        self.after = _seconds(after)


class Snooze(TaskError):
    """Not now: give the task back for `after` seconds, 0.1 at least. Costs no attempt.

    Raises TypeError or ValueError for an `after` that is no number or negative: a failed attempt, if not caught.
    """

    code = "snoozed"

    def __init__(
        self,
        message: str = "snoozed",
        *,
        after: float | timedelta,
        code: str | None = None,
        info: Any = None,
    ) -> None:
        super().__init__(message, code=code, info=info)
        self.after: float = check_pause(after)


class Throttled(Snooze):
    """A provider said "too many": like Snooze, but bounded in all by TASKGATE_MAX_THROTTLE_SECONDS."""

    code = "throttled"


class PermanentError(TaskError):
    """The task can never succeed as it stands: it ends `failed` at once."""

    code = "permanent"


def check_pause(after: object) -> float:
    """A snooze's seconds. Raises TypeError or ValueError: what says not when would come again at once, for ever."""
    value = after.total_seconds() if isinstance(after, timedelta) else after
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"a snooze needs after=SECONDS or a timedelta, not {type(after).__name__}") from None
    if not seconds >= 0:  # NaN too
        raise ValueError(f"a snooze needs after=SECONDS of 0 or more, not {seconds}")
    return seconds


def _seconds(after: float | timedelta | None) -> float | None:
    return after.total_seconds() if isinstance(after, timedelta) else after


class LeaseLost(Exception):
    """The task was recovered or taken by somebody else; nothing this attempt writes counts any more."""


class EndedCancelled(LeaseLost):
    """It was cancelled and has ended, so nobody else has it: who learns of an operation at the provider cancels it."""
