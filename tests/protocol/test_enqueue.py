"""enqueue: ids that are taken, batches that overlap, the order of keys."""

from __future__ import annotations

from collections import Counter
from functools import partial

from tests.protocol.tools import Background, Db


def test_enqueue_tells_of_ids_that_are_taken(db: Db) -> None:
    assert db.enqueue("a", "b") == ["done", "done"]
    assert db.enqueue("b", "c", "c", request='{"other": 1}') == ["exists", "done", "exists"]
    assert db.task("b")["request"] == {}
    rows = db.run("SELECT * FROM enqueue(ARRAY[NULL, NULL], ARRAY['llm', 'llm'], ARRAY['1', '2'])")
    assert len({row["task_id"] for row in rows}) == 2
    assert all(row["task_id"][14] == "7" for row in rows)
    assert db.run("SELECT * FROM enqueue('{}', '{}', '{}')") == []


def test_two_batches_that_share_ids_in_opposite_order_do_not_deadlock(db: Db) -> None:
    with db.another() as second, second.connection.transaction():
        second.enqueue("m")
        batches = (("a", "m", "z"), ("z", "m", "a"), ("b", "z"))
        calls = [Background(partial(db.another().enqueue, *ids)) for ids in batches]
    outcomes = Counter(outcome for call in calls for outcome in call.result())
    assert outcomes == {"done": 3, "exists": 5}
    assert db.value("SELECT count(*) FROM tasks") == 4


def test_the_order_of_keys_is_kept_until_somebody_changes_the_request(db: Db) -> None:
    text = '{"reasoning": 1, "answer": 2, "a": 3}'
    db.run("SELECT enqueue(ARRAY['raw', 'plain'], ARRAY['llm', 'llm'], ARRAY[%s, %s], ARRAY[true, false])", text, text)
    raw, plain = db.claim("w", 2).rows
    assert raw["request"] == text
    assert plain["request"] == '{"a": 3, "answer": 2, "reasoning": 1}'
    db.release(*[(row["task_id"], row["token"]) for row in (raw, plain)])
    db.run("UPDATE tasks SET request = '{\"b\": 1}' WHERE task_id = 'raw'")
    assert db.task("raw")["request_raw"] is None
    assert db.claim("w", 1).rows[0]["request"] == '{"b": 1}'
