"""How an attempt ends: from what the handler returned or raised, and why it was told to stop, to a settlement."""

from __future__ import annotations

import traceback
from typing import Any

from taskgate.protocol.calls import Failure, Release
from taskgate.task import LeaseLost, PermanentError, Snooze, TaskError, check_pause
from taskgate.worker.results import NO_WORDS, error_text, info_text, words
from taskgate.worker.run import Run, Settlement

MAX_TRACEBACK_CHARS = 8_000
MAX_DELAY_SECONDS = 366 * 86400.0
MIN_SNOOZE_SECONDS = 0.1
"""A snooze costs no attempt, so nothing but this floor keeps one from coming again and again at full speed."""


def of_error(run: Run, error: BaseException) -> Settlement:
    """The settlement of a handler that raised and was not told to stop. Raises nothing, whatever `error` is."""
    try:
        return _of_error(run, error)
    except BaseException:  # an exception with code of its own, such as a metaclass or properties that raise
        return undescribed(run)


def undescribed(run: Run) -> Failure:
    """The settlement where not even an error can be told of."""
    text = "the handler raised an exception that cannot be described"
    return Failure(run.claimed.task_id, run.claimed.token, text, "handler_error", retry=True)


def _of_error(run: Run, error: BaseException) -> Settlement:
    task_id, token = run.claimed.task_id, run.claimed.token
    if isinstance(error, TaskError):
        text, code = error_text(_text(error)), _code(_attribute(error, "code"))
        info, after = info_text(_attribute(error, "info")), _attribute(error, "after")
        if isinstance(error, Snooze):
            return _snoozed(run, after, code, text, info)
        if isinstance(error, PermanentError):
            return Failure(task_id, token, text, code, info)
        return Failure(task_id, token, text, code, info, retry=True, delay=_delay(after))
    if isinstance(error, LeaseLost):
        return given_back(run, "lease_lost", words(error))
    return Failure(
        task_id,
        token,
        error_text(f"{type(error).__name__}: {words(error)}".rstrip(": ")),
        "handler_error",
        info_text({"traceback": _traceback(error)}),
        retry=True,
    )


def _snoozed(run: Run, after: object, code: str, text: str, info: str | None) -> Settlement:
    """A snooze, or a failed attempt where `after` was made unusable past Snooze's own check."""
    task_id, token = run.claimed.task_id, run.claimed.token
    try:
        seconds = check_pause(after)
    except (TypeError, ValueError) as error:
        return Failure(task_id, token, error_text(f"{words(error)} ({text})"), "handler_error", info, retry=True)
    return Release(task_id, token, min(max(MIN_SNOOZE_SECONDS, seconds), MAX_DELAY_SECONDS), code, text, info)


def of_stop(run: Run, reason: str) -> Settlement:
    """The settlement of a handler that was told to stop and has no result to show for it."""
    task_id, token = run.claimed.task_id, run.claimed.token
    if reason == "timeout":
        return Failure(task_id, token, f"the attempt took longer than {run.timeout:g} s", "timeout", retry=True)
    if reason == "cancelled":
        return Failure(task_id, token, "cancelled", "cancelled")
    if reason == "lease_lost":
        return given_back(run, "lease_lost", "the lease could not be renewed in time")
    return given_back(
        run, "released", "no slot came free for it" if reason == "no_slot" else "the worker is shutting down"
    )


def given_back(run: Run, code: str, why: str) -> Release:
    return Release(run.claimed.task_id, run.claimed.token, code=code, reason=error_text(why))


def keeps_result(reason: str | None) -> bool:
    """Whether a result counts that came although the handler was told to stop for `reason`.

    Work that was paid for is kept if the database still takes it; a time limit and a cancellation are promises.
    """
    return reason in (None, "shutdown", "lease_lost")


def by_itself(error: BaseException, reason: str) -> bool:
    """Whether a handler that was told to stop for `reason` had come to an end of its own: its verdict is kept.

    After a cancellation that is giving the task back: its operation at the provider could not be cancelled.
    """
    return (
        isinstance(error, Snooze)
        if reason == "cancelled"
        else reason == "shutdown" and isinstance(error, PermanentError)
    )


def _delay(after: object) -> float | None:
    """Seconds from 0 to a year, None (backoff) where a handler, or the provider it quotes, says nothing usable."""
    try:
        seconds = float(after)  # type: ignore[arg-type]
    except OverflowError:
        return MAX_DELAY_SECONDS
    except (TypeError, ValueError):
        return None
    return min(seconds, MAX_DELAY_SECONDS) if seconds >= 0 else None


def _attribute(error: BaseException, name: str) -> Any:
    """None where it is missing (a subclass that does not call `super().__init__`) or cannot be had."""
    try:
        return getattr(error, name, None)
    except BaseException:
        return None


def _text(error: TaskError) -> str:
    message = _attribute(error, "message")
    return words(error if message is None else message)


def _code(code: object) -> str:
    return error_text("handler_error" if code is None else words(code))[:100]


def _traceback(error: BaseException) -> str:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException:
        return NO_WORDS
    return "".join(lines)[-MAX_TRACEBACK_CHARS:]
