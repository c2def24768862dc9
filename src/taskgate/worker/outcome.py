"""How an attempt ends: from what the handler returned or raised, and why it was told to stop, to a settlement."""

from __future__ import annotations

import math
import traceback

from taskgate.protocol.calls import Failure, Release
from taskgate.task import LeaseLost, PermanentError, Retry, Snooze, TaskError
from taskgate.worker.results import error_text, info_text
from taskgate.worker.run import Run, Settlement

MAX_TRACEBACK_CHARS = 8_000
MAX_DELAY_SECONDS = 366 * 86400.0


def of_error(run: Run, error: BaseException) -> Settlement:
    """The settlement of a handler that raised and was not told to stop."""
    task_id, token = run.claimed.task_id, run.claimed.token
    if isinstance(error, TaskError):
        text, code, info = error_text(str(error.message)), _code(error.code), info_text(error.info)
        if isinstance(error, Snooze):
            return Release(task_id, token, _delay(error.after), code, text, info)
        if isinstance(error, PermanentError):
            return Failure(task_id, token, text, code, info)
        delay = _delay(error.after) if isinstance(error, Retry) and error.after is not None else None
        return Failure(task_id, token, text, code, info, retry=True, delay=delay)
    if isinstance(error, LeaseLost):
        return given_back(run, "lease_lost", str(error))
    return Failure(
        task_id,
        token,
        error_text(f"{type(error).__name__}: {_words(error)}".rstrip(": ")),
        "handler_error",
        info_text({"traceback": _traceback(error)}),
        retry=True,
    )


def of_stop(run: Run, reason: str) -> Settlement:
    """The settlement of a handler that was told to stop and has no result to show for it."""
    task_id, token = run.claimed.task_id, run.claimed.token
    if reason == "timeout":
        return Failure(task_id, token, f"the attempt took longer than {run.timeout:g} s", "timeout", retry=True)
    if reason == "cancelled":
        return Failure(task_id, token, "cancelled", "cancelled")
    if reason == "lease_lost":
        return given_back(run, "lease_lost", "the lease could not be renewed in time")
    return given_back(run, "released", "the worker is shutting down")


def given_back(run: Run, code: str, why: str) -> Release:
    return Release(run.claimed.task_id, run.claimed.token, code=code, reason=error_text(why))


def keeps_result(reason: str | None) -> bool:
    """Whether a result counts that came although the handler was told to stop for `reason`.

    Work that was paid for is kept if the database still takes it; a time limit and a cancellation are promises.
    """
    return reason in (None, "shutdown", "lease_lost")


def by_itself(error: BaseException) -> bool:
    """Whether a handler that was told to stop had come to an end of its own: its verdict is kept."""
    return isinstance(error, PermanentError)


def _delay(after: object) -> float:
    """Seconds from 0 to a year, whatever a handler (or the provider it quotes) asked for."""
    try:
        seconds = float(after)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), MAX_DELAY_SECONDS) if math.isfinite(seconds) else 0.0


def _code(code: object) -> str:
    return error_text(str(code))[:100]


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error whose __str__ fails
        return ""


def _traceback(error: BaseException) -> str:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "".join(lines)[-MAX_TRACEBACK_CHARS:]
