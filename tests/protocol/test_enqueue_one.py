"""A single task is written by statements of its own: the row is the one that `enqueue` writes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.protocol.tools import Db

EVERY_OPTION: dict[str, Any] = {
    "priority": 9, "delay_seconds": 30.5, "start_within_seconds": 60, "timeout_seconds": 1.5, "max_attempts": 7,
    "metadata": {"a": [1]}, "upstream": "house", "tenant": "its own", "traceparent": "00-1-1-01",
}  # fmt: skip
ONE = "SELECT enqueue_one(%s, %s, %s, %s, %s, %s, %s)"
MANY = "SELECT outcome FROM enqueue(ARRAY[%s], ARRAY[%s], ARRAY[%s], ARRAY[%s]::boolean[], ARRAY[%s], %s, %s)"


def written(db: Db, statement: str, task_id: str, *values: Any) -> dict[str, Any]:
    """The row without what no two rows share; its times as seconds after its creation."""
    assert db.value(statement, task_id, *values) == "done"
    row: dict[str, Any] = db.value("SELECT to_jsonb(t) FROM tasks t WHERE task_id = %s", task_id)
    created = datetime.fromisoformat(row["created_at"])
    for name in ("updated_at", "run_at", "start_before"):
        if row[name] is not None:
            row[name] = (datetime.fromisoformat(row[name]) - created).total_seconds()
    return {name: value for name, value in row.items() if name not in ("task_id", "seq", "created_at")}


@pytest.mark.parametrize("options", [None, {}, EVERY_OPTION, *({name: value} for name, value in EVERY_OPTION.items())])
@pytest.mark.parametrize("keep_order", [None, False, True])
@pytest.mark.parametrize("request_", ['{"z": 1, "a": "ä"}', '{"z": 1, "model": "qwen3:8b"}', '{"model": 7}', "[]"])
def test_it_writes_the_row_that_enqueue_writes(db: Db, options: object, keep_order: bool | None, request_: str) -> None:
    db.run("INSERT INTO upstreams (name, api, models) VALUES ('house', 'openai', '{}'), ('other', 'openai', '{qwen*}')")
    values = ("llm", request_, keep_order, None if options is None else json.dumps(options), "acme", "00-2-2-00")
    assert written(db, ONE, "one", *values) == written(db, MANY, "many", *values)


def test_a_time_to_start_at_is_the_same(db: Db) -> None:
    values = ("llm", "{}", None, '{"run_at": "2031-01-01T12:00:00Z", "start_within_seconds": 5}', "", None)
    for task_id, statement in (("one", ONE), ("many", MANY)):
        db.run(statement, task_id, *values)
    times = db.run("SELECT run_at, start_before, traceparent FROM tasks")
    assert times[0] == times[1]
    assert times[0]["run_at"].isoformat() == "2031-01-01T12:00:00+00:00"


@pytest.mark.parametrize(
    ("request_", "options"),
    [
        ("{", None),
        ('"\\u0000"', None),
        ("{}", "{"),
        ("{}", '{"priority": "high"}'),
        ("{}", '{"priority": 10}'),
        ("{}", '{"priority": 70000}'),
        ("{}", '{"max_attempts": "many"}'),
        ("{}", '{"timeout_seconds": "soon"}'),
        ("{}", '{"delay_seconds": 1e300}'),
        ("{}", '{"run_at": "tomorrow at noon"}'),
    ],
)
def test_it_refuses_what_enqueue_refuses(db: Db, request_: str, options: str | None) -> None:
    states = []
    for statement in (ONE, MANY):
        with pytest.raises(psycopg.errors.Error) as refused:
            db.run(statement, "a", "llm", request_, None, options, "", None)
        states.append(refused.value.sqlstate)
    assert states[0] == states[1]
    assert db.run("SELECT FROM tasks") == []


def test_an_id_that_is_taken_leaves_the_task_as_it_is(db: Db) -> None:
    db.enqueue("a", request='{"n": 1}')
    assert db.value(ONE, "a", "llm", '{"n": 2}', None, None, "", None) == "exists"
    assert db.value("SELECT request FROM tasks") == {"n": 1}
