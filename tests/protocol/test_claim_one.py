"""A claim that finds a single task has a statement of its own: the answer and the row are those of a claim of many."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.protocol.tools import Db

REQUEST = '{"z": 1,' + 99 * " " + '"a": "ä"}'  # as text it is larger than as jsonb
METADATA = '{"a": [1]}'
SIZE = len(REQUEST.encode()) + len(METADATA)
SIZE_BACK = SIZE + len('{"attempt": 2}')
OPTIONS = f'{{"metadata": {METADATA}, "timeout_seconds": 1.5, "max_attempts": 7, "tenant": "acme", "traceparent": "t"}}'
CLAIM = "SELECT * FROM claim('w', %s, '{}', interval '1 minute', '{llm}', %s, p_ahead => %s)"


def fresh(db: Db, *ids: str) -> None:
    for task_id in ids:
        db.run("SELECT enqueue(ARRAY[%s], '{llm}', ARRAY[%s], '{true}', ARRAY[%s])", task_id, REQUEST, OPTIONS)


def plain(db: Db, *ids: str) -> None:
    db.enqueue(*ids, request='{"model": "m"}')


def endless(db: Db, *ids: str) -> None:
    db.enqueue(*ids, options='{"timeout_seconds": 0, "start_within_seconds": 60}')


def came_back(db: Db, *ids: str) -> None:
    """With something saved, and perhaps paid for, by two attempts."""
    fresh(db, *ids)
    for attempt in (1, 2):
        for pair in db.claim(slots=9).pairs:
            assert db.checkpoint(*pair, f'{{"attempt": {attempt}}}') == "done"
            assert db.value("SELECT intend(%s, %s, '{\"a\": 1}')", *pair) == "done"
            assert db.value("SELECT save_operation(%s, %s, '{\"name\": 1}')", *pair) == "done"
            assert db.fail(pair, retry=True, delay=0) == ["done"]


def claimed(db: Db, slots: int, inline: int | None, ahead: int | None) -> list[dict[str, Any]]:
    """What both tell: the answers, and the rows, with their times as spans."""
    found = db.run(CLAIM, slots, inline, ahead)
    rows = db.run("SELECT * FROM tasks WHERE task_id = ANY (%s)", [each["task_id"] for each in found])
    by_id = {row["task_id"]: row for row in rows}
    for each in found:
        row = by_id[each["task_id"]]
        assert each.pop("token") == row["claim_token"]
        assert timedelta() <= each.pop("waited") < timedelta(minutes=1)
        if each["paid"] is not None:
            assert each["paid"].pop("token") < row["claim_token"]
            assert each["paid"].pop("intent_at")
        each["leased"] = row["locked_until"] - row["started_at"]
        each["as soon"] = row["updated_at"] == row["started_at"]
        each["row"] = {
            name: row[name] for name in ("status", "attempts", "worker_id", "expires_at", "start_before", "finished_at")
        }
        del each["task_id"]
    return found


@pytest.mark.parametrize("prepared", [fresh, plain, endless, came_back])
@pytest.mark.parametrize("inline", [None, 0, SIZE - 1, SIZE, SIZE_BACK - 1, SIZE_BACK, 1_000_000])
@pytest.mark.parametrize("ahead", [None, 0])
def test_it_answers_as_a_claim_of_many(
    db: Db, prepared: Callable[..., None], inline: int | None, ahead: int | None
) -> None:
    prepared(db, "a", "b")
    first, _ = claimed(db, 2, inline, ahead)
    db.run("DELETE FROM tasks")
    prepared(db, "c")
    assert claimed(db, 1, inline, ahead) == [first]
    size = {fresh: SIZE, came_back: SIZE_BACK}.get(prepared, 2)
    assert (first["request"] is None) == (inline is not None and inline < size)


def test_a_task_that_is_taken_ahead_has_no_attempt_yet(db: Db) -> None:
    db.set_limit(8)
    plain(db, "a")
    (one,) = claimed(db, 0, None, 1)
    assert (one["attempt"], one["row"]["attempts"], one["row"]["status"]) == (1, 0, "running")
    plain(db, "b", "c")
    more = db.claim(slots=0, held=[db.task("a")["claim_token"]], ahead=2)
    assert {db.task(task_id)["attempts"] for task_id in more.ids} == {0}


def test_a_trigger_that_prevents_it_leaves_no_row_to_answer(db: Db) -> None:
    plain(db, "a")
    db.run("CREATE FUNCTION freeze() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    db.run("CREATE TRIGGER zz BEFORE UPDATE ON tasks FOR EACH ROW EXECUTE FUNCTION freeze()")
    assert db.run(CLAIM, 1, None, None) == []
    db.run("DROP TRIGGER zz ON tasks")
    assert len(db.run(CLAIM, 1, None, None)) == 1


def test_a_sequence_that_was_set_by_hand_counts_nothing_twice(db: Db) -> None:
    """As after a restore of the tasks alone: the sequence has given out nothing since it was set."""
    db.set_limit(4)
    plain(db, *"abcdef")
    held = [token for _, token in db.claim(slots=2).pairs]
    db.run("DELETE FROM claim_ledger")
    db.run("SELECT setval('claim_token_seq', %s, false)", max(held) + 1)
    db.recover()
    assert len(db.claim(slots=4, held=held).pairs) == 2
