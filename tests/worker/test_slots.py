"""Who is in a slot, who waits for one, and how much is claimed ahead."""

from __future__ import annotations

from typing import cast

import pytest

from taskgate.worker.run import Run
from taskgate.worker.slots import MOST, PATIENCE_SECONDS, SHORT_SECONDS, WORTH, Slots

PER_SLOT = 9


def run() -> Run:
    return cast(Run, object())


def after_short_tasks(slots: Slots, count: int) -> Slots:
    for _ in range(count):
        assert slots.enter(run())
        assert slots.leave(0.0, completed=True) is None
    return slots


def test_it_begins_carefully() -> None:
    slots = Slots(1, PER_SLOT)
    assert slots.ask(0) == (1, 0)
    after_short_tasks(slots, 1)
    assert slots.ask(0) == (1, 1)
    after_short_tasks(slots, 3)
    assert slots.ask(0) == (1, 4)
    after_short_tasks(slots, 1000)
    assert slots.ask(0) == (1, PER_SLOT)


@pytest.mark.parametrize(
    ("seconds", "completed", "ahead"),
    [
        (SHORT_SECONDS, True, 9),
        (SHORT_SECONDS * 1.01, True, 4),
        (PATIENCE_SECONDS * 1.01, True, 0),
        (0.0, False, 0),
    ],
)
def test_a_task_that_is_not_short_ends_it(seconds: float, completed: bool, ahead: int) -> None:
    slots = after_short_tasks(Slots(1, PER_SLOT), 8)
    assert slots.enter(run())
    slots.leave(seconds, completed=completed)
    assert slots.ask(0) == (1, ahead)


def test_a_large_process_holds_no_more_than_makes_its_claims_cheaper() -> None:
    assert after_short_tasks(Slots(20, PER_SLOT), 10_000).ask(0) == (20, MOST - 20)
    assert after_short_tasks(Slots(MOST, PER_SLOT), 10_000).ask(0) == (MOST, 0)
    assert after_short_tasks(Slots(400, PER_SLOT), 10_000).ask(0) == (400, 0)


def test_with_no_slot_free_a_few_are_not_worth_a_claim() -> None:
    slots = after_short_tasks(Slots(20, PER_SLOT), 10_000)
    assert slots.ask(20) == (0, MOST - 20)
    assert slots.ask(MOST - WORTH) == (0, WORTH)
    assert slots.ask(MOST - WORTH + 1) == (0, 0)


def test_nothing_is_claimed_ahead_while_the_slots_are_in_use_or_somebody_waits() -> None:
    slots = after_short_tasks(Slots(2, PER_SLOT), 100)
    first, second, third, fourth = run(), run(), run(), run()
    assert slots.enter(first)
    assert slots.ask(1) == (1, PER_SLOT)
    assert slots.enter(second)
    assert slots.ask(2) == (0, 0)
    assert not slots.enter(third)
    assert not slots.enter(fourth)
    assert slots.leave(0.0, completed=True) is third
    assert slots.ask(3) == (0, 0)
    assert slots.leave(0.0, completed=True) is fourth
    assert slots.leave(0.0, completed=True) is None
    assert slots.ask(1) == (1, PER_SLOT)


def test_what_has_waited_too_long_leaves_the_line() -> None:
    slots = after_short_tasks(Slots(1, PER_SLOT), 100)
    assert slots.enter(run())
    waiting = [run(), run()]
    assert [slots.enter(each) for each in waiting] == [False, False]
    assert slots.clear_waiting() == waiting
    assert slots.clear_waiting() == []
    assert slots.leave(0.0, completed=True) is None, "nobody waits any more"
    assert slots.ask(0) == (1, 1), "and it begins anew"


def test_none_is_claimed_ahead_unless_it_is_asked_for() -> None:
    assert after_short_tasks(Slots(20, 0), 1000).ask(0) == (20, 0)
