"""From what a handler raised to a settlement, without a database; and loops that go on."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from taskgate.protocol.calls import Failure, Release
from taskgate.protocol.version import SchemaMismatch
from taskgate.task import Retry, Snooze, Throttled
from taskgate.worker.loops import kept_going
from taskgate.worker.outcome import MAX_DELAY_SECONDS, of_error
from taskgate.worker.run import Run
from taskgate.worker.runner import MAX_LIMIT, _limit

RUN = cast(Run, SimpleNamespace(claimed=SimpleNamespace(task_id="t", token=7), token=7))


@pytest.mark.parametrize("after", [None, "soon", math.nan, -0.5, timedelta(seconds=-1), []])
def test_a_snooze_says_for_how_long(after: Any) -> None:
    for kind in (Snooze, Throttled):
        with pytest.raises((TypeError, ValueError), match="a snooze needs after=SECONDS"):
            kind("later", after=after)


@pytest.mark.parametrize(
    ("after", "delay"),
    [(0, 0.1), (0.05, 0.1), (3, 3.0), (timedelta(minutes=1), 60.0), (math.inf, MAX_DELAY_SECONDS),
     (10**400, MAX_DELAY_SECONDS)],
)  # fmt: skip
def test_a_snooze_has_a_floor_and_a_ceiling(after: Any, delay: float) -> None:
    assert of_error(RUN, Snooze("later", after=after)) == Release("t", 7, delay, "snoozed", "later", None)


def test_a_snooze_that_was_spoilt_is_a_failed_attempt() -> None:
    error = Snooze("later", after=1)
    error.after = math.nan
    settlement = of_error(RUN, error)
    assert isinstance(settlement, Failure)
    assert (settlement.retry, settlement.code, settlement.delay) == (True, "handler_error", None)
    assert "a snooze needs after=SECONDS" in settlement.error


@pytest.mark.parametrize(
    ("after", "delay"),
    [(None, None), (0, 0.0), (math.nan, None), (-1, None), ("x", None), (math.inf, MAX_DELAY_SECONDS)],
)
def test_a_retry_without_a_usable_delay_backs_off(after: Any, delay: float | None) -> None:
    settlement = of_error(RUN, Retry("again", after=after))
    assert isinstance(settlement, Failure)
    assert (settlement.retry, settlement.delay) == (True, delay)


@pytest.mark.parametrize(
    ("candidates", "limit"),
    [((5.0, 1.0), 5.0), ((None, 1.0), 1.0), ((0.0, None, 9.0), 9.0), ((-1.0, 9.0), 9.0), ((math.nan, 9.0), 9.0),
     ((math.inf, 9.0), MAX_LIMIT)],
)  # fmt: skip
def test_a_time_limit_that_is_none_is_passed_over(candidates: tuple[float | None, ...], limit: float) -> None:
    assert _limit(*candidates) == limit


async def test_a_loop_goes_on_after_an_error_that_nobody_thought_of() -> None:
    errors: list[Exception] = [KeyError("odd"), ZeroDivisionError("also")]

    async def work() -> None:
        if errors:
            raise errors.pop()

    with capture_logs() as said:
        await asyncio.wait_for(kept_going("some", work), 60)
    assert [(each["event"], each["loop"], each["error"]) for each in said] == [
        ("loop_failed", "some", "ZeroDivisionError: also"),
        ("loop_failed", "some", "KeyError: 'odd'"),
    ]

    async def mismatch() -> None:
        raise SchemaMismatch("other")

    with pytest.raises(SchemaMismatch):
        await kept_going("some", mismatch)
