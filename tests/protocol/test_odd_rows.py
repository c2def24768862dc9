"""Rows that only SQL can write: one of them must not stop a worker, nor fail its neighbours."""

from __future__ import annotations

import pytest

from taskgate.protocol.calls import Calls, Failure, Release, server_settings
from taskgate.protocol.connect import Database, connect
from tests.protocol.tools import Db

ODD = {
    "waits for ever": "'infinity'::timestamptz, now(), 0, NULL",
    "waits beyond what drivers decode": "'33000-01-01'::timestamptz, now(), 0, NULL",
    "from the future": "NULL, 'infinity', 0, NULL",
    "from the beginning": "NULL, '-infinity', 0, NULL",
    "from antiquity": "NULL, '4000-01-01 BC', 0, NULL",
    "tried too often": "NULL, now(), 2147483647, NULL",
    "no time at all": "NULL, now(), 0, -5",
    "a time that is no number": "NULL, now(), 0, 'NaN'",
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_row_is_claimed_or_waits_and_can_be_read(db: Db, name: str) -> None:
    db.connection.execute(
        "INSERT INTO tasks (task_id, status, task_type, request, run_at, created_at, attempts, timeout_seconds)"
        f" VALUES ('odd', 'pending', 'llm', '{{}}', {ODD[name]})".encode()
    )
    db.enqueue("good")
    connection = await connect(Database(db.dsn), "test")
    try:
        calls = Calls(connection)
        answer = await calls.claim("w", 10, [], 60.0, ["llm"])
        taken = {task.task_id: task for task in answer.tasks}
        assert taken.keys() == ({"good"} if name.startswith("waits") else {"good", "odd"})
        assert all(task.waited_seconds >= 0 and task.timeout_seconds is None for task in answer.tasks)
        waiting = await calls.claim("w", 10, [task.token for task in answer.tasks], 60.0, ["llm"])
        assert waiting.outcome == "empty"
        assert (waiting.next_due == 86400.0) == name.startswith("waits")
        seen = await calls.get(["odd", "good"])
        assert seen.keys() == {"odd", "good"}
        assert seen["good"]["finished_at"] is None, "no time stays no time"
        assert seen["good"]["started_at"] is not None
        assert len(await calls.page()) == 2
        assert [row["attempt"] for row in await calls.history("good")] == [1]
    finally:
        await connection.close()


@pytest.mark.parametrize("times", ["'-infinity', '290000-01-01'", "'2000-01-01', '-infinity'", "'-infinity', now()"])
def test_an_impossible_lease_is_recovered(db: Db, times: str) -> None:
    db.enqueue("a")
    db.claim()
    db.connection.execute(f"UPDATE tasks SET (locked_until, updated_at) = ({times})".encode())
    db.connection.execute("UPDATE claim_ledger SET swept_at = '-infinity'")
    assert db.connection.execute("SELECT recover()").fetchone() == {"recover": 1}
    assert db.task("a")["status"] == "pending"


async def test_a_row_that_somebody_holds_is_busy_and_its_neighbours_are_settled(db: Db) -> None:
    db.enqueue("held", "free-1", "free-2", "free-3")
    tokens = dict(db.claim("w", 4).pairs)
    other = db.another()
    other.connection.execute("BEGIN")
    other.connection.execute("SELECT FROM tasks WHERE task_id = 'held' FOR UPDATE")
    connection = await connect(Database(db.dsn), "test")
    try:
        calls = Calls(connection)
        held = ("held", tokens["held"])
        done = await calls.complete([(*held, "1"), ("free-1", tokens["free-1"], "1")])
        assert done == {held: "busy", ("free-1", tokens["free-1"]): "done"}
        failed = await calls.fail([Failure(*held, "x", "y"), Failure("free-2", tokens["free-2"], "x", "y")])
        assert failed == {held: "busy", ("free-2", tokens["free-2"]): "done"}
        released = await calls.release([Release(*held), Release("free-3", tokens["free-3"])])
        assert released == {held: "busy", ("free-3", tokens["free-3"]): "done"}
        other.connection.execute("ROLLBACK")
        assert await calls.complete([(*held, "1")]) == {held: "done"}
        assert await calls.complete([(*held, "1")]) == {held: "already"}
    finally:
        await connection.close()


def test_the_session_settings_are_those_the_queries_need() -> None:
    assert server_settings("public", "x")["search_path"] == "taskgate, public"
    assert server_settings("own", "x")["search_path"] == "taskgate_own, own"
