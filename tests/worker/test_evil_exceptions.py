"""Exceptions that do harm when they are told of: each is a failed attempt like any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.processes import Table, WorkerProcess

WANTED = {
    "mute exit": ("handler_error", "Mute: (its text cannot be had)"),
    "mute interrupt": ("handler_error", "Mute: (its text cannot be had)"),
    "mute generator": ("handler_error", "Mute: (its text cannot be had)"),
    "mute cancel": ("handler_error", "Mute: (its text cannot be had)"),
    "nameless": ("handler_error", "the handler raised an exception that cannot be described"),
    "generator exit": ("handler_error", "GeneratorExit"),
    "stop iteration": ("handler_error", "StopIteration"),
    "group": ("handler_error", "BaseExceptionGroup: g (2 sub-exceptions)"),
    "mute message": ("permanent", "(its text cannot be had)"),
    "mute info": ("permanent", "with info"),
    "unmade": ("permanent", ""),
    "mute result": ("result_not_json", "is not JSON"),
    "snooze none": ("handler_error", "a snooze needs after=SECONDS or a timedelta, not NoneType"),
    "snooze nan": ("handler_error", "a snooze needs after=SECONDS of 0 or more, not nan"),
    "snooze negative": ("handler_error", "a snooze needs after=SECONDS of 0 or more, not -1.0"),
    "retry strange": ("handler_error", "again"),
    "too big": ("result_not_json", "Exceeds the limit"),
}


@pytest.mark.parametrize("task_type", ["evil", "evil-sync"])
async def test_each_ends_its_attempt_and_nothing_else(
    table: Table, start_worker: Callable[..., WorkerProcess], task_type: str
) -> None:
    worker = start_worker(f"{task_type},noop", TASKGATE_SLOTS="30")
    ids = dict(
        zip(WANTED, await table.add(task_type, [{"what": what} for what in WANTED], max_attempts=1), strict=True)
    )
    rows = await table.final(list(ids.values()))
    for what, (code, text) in WANTED.items():
        row = rows[ids[what]]
        assert (row["status"], row["attempts"]) == ("failed", 1), what
        assert row["error_code"] == code, (what, row["error"])
        assert text in row["error"], what
    assert worker.process.poll() is None
    ours = await table.add("noop", [{}] * 3)
    assert {row["status"] for row in (await table.final(ours)).values()} == {"completed"}
    assert not worker.events("loop_failed")
