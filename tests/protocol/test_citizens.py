"""Producers and workers that know only SQL, beside ours."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.protocol.origin import LOCK, OriginWorker
from tests.protocol.tools import Db, until

NOT_BLIND = (
    "SELECT task_id FROM tasks WHERE status = 'pending' AND task_type IS NOT NULL AND request IS NOT NULL"
    " AND run_at > now() IS NOT TRUE AND start_before < now() IS NOT TRUE ORDER BY priority DESC, created_at"
)


def test_the_lock_s_key(db: Db) -> None:
    assert db.value("SELECT lock_key()") == 8386110886273709157
    assert (8386110886273709157).to_bytes(8, "big") == b"taskgate"
    with psycopg.connect(db.dsn) as other:
        other.execute(LOCK.encode())
        assert db.claim().outcome == "busy"


def test_a_plain_insert_is_a_complete_enqueue_and_wakes_an_idle_worker(db: Db, origin: OriginWorker) -> None:
    with db.another() as listener:
        listener.run("LISTEN taskgate_ready")
        origin.insert("unheard")
        assert list(listener.connection.notifies(timeout=0.2)) == [], "nobody waits: no notification"
        assert db.claim().ids == ["unheard"]
        assert db.claim("v").outcome == "empty"  # from now on somebody waits
        with origin.connection.transaction():
            origin.insert("heard")
            assert list(listener.connection.notifies(timeout=0.2)) == [], "not before the commit"
            assert db.claim("v").outcome == "unsure", "an insert is under way"
        (notice,) = listener.connection.notifies(timeout=30, stop_after=1)
        assert notice.channel == "taskgate_ready"
    assert db.claim("v").ids == ["heard"]
    task = db.task("heard")
    assert (task["priority"], task["tenant"], task["run_at"]) == (4, "", None)


def test_an_insert_that_skipped_its_notification_is_not_missed_by_a_worker_that_goes_idle(db: Db) -> None:
    with db.another() as producer, producer.connection.transaction():
        producer.run("INSERT INTO tasks (task_id, status, task_type, request) VALUES ('a', 'pending', 'llm', '{}')")
        assert db.claim().outcome == "unsure"
    assert db.claim().ids == ["a"]


def test_both_kinds_share_the_limit_exactly(db: Db, origin: OriginWorker) -> None:
    db.set_limit(3)
    origin.limit = 3
    db.enqueue(*"abcdefgh")
    assert origin.claim() == "a"
    assert db.claim("w", 1).ids == ["b"]
    db.no_sweep()
    assert origin.claim() == "c"
    assert db.claim("w", 5, [0]).outcome == "claimed"  # its own `b`, again
    assert db.claim("v", 5).outcome == "full"
    assert origin.claim() is None
    assert origin.complete("a") == 1
    db.no_sweep()
    assert db.claim("v", 5).ids == ["d"]
    assert origin.claim() is None
    assert db.running() == 3
    tokens = db.run("SELECT claim_token FROM tasks WHERE status = 'running'")
    assert len({row["claim_token"] for row in tokens}) == 3


def test_neither_takes_the_other_s_live_task(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a", "b")
    (pair,) = db.claim().pairs
    assert origin.claim() == "b"
    assert origin.claim() is None
    assert db.claim("v", 5).outcome == "empty"
    assert origin.complete("b", {"by": "origin"}) == 1
    task = db.task("b")
    assert (task["status"], task["result"], task["worker_id"]) == ("completed", {"by": "origin"}, None)
    assert task["finished_at"] is not None
    assert db.complete(pair) == ["done"]


@pytest.mark.parametrize("statement", ["completed", "failed", "pending"])
def test_a_live_task_of_ours_is_not_theirs_to_end_or_to_give_back(db: Db, origin: OriginWorker, statement: str) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    before = db.task("a")
    assert origin.connection.execute(f"UPDATE tasks SET status = '{statement}' WHERE task_id = 'a'").rowcount == 0
    assert db.task("a") == before
    assert db.complete(pair) == ["done"]


# The three zombies: each took the task, froze past its lease, and writes late.


def test_zombie_of_the_origin_after_one_of_ours_took_the_task(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    assert origin.claim() == "a"
    db.age(120)
    assert db.recover() == 1
    assert origin.complete("a", {"by": "zombie"}) == 0, "the task waits: not theirs to end"
    (pair,) = db.claim().pairs
    assert origin.complete("a", {"by": "zombie"}) == 0, "one of ours runs it"
    assert db.complete(pair, result='{"by": "ours"}') == ["done"]
    assert origin.complete("a", {"by": "zombie"}) == 0, "it is final"
    assert origin.fail("a", "late") == 0
    assert db.task("a")["result"] == {"by": "ours"}
    assert [h["outcome"] for h in db.history("a")] == ["lost", "completed"]


def test_zombie_of_ours_after_a_worker_of_the_origin_took_the_task(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    db.age(120)
    assert origin.claim() == "a"
    assert db.complete(pair, result='{"by": "zombie"}') == ["stale"]
    assert db.renew(pair) == ["stale"]
    assert db.fail(pair) == ["stale"]
    assert db.release(pair) == ["stale"]
    assert origin.complete("a", {"by": "origin"}) == 1
    assert db.complete(pair) == ["stale"]
    task = db.task("a")
    assert (task["status"], task["result"], task["attempts"]) == ("completed", {"by": "origin"}, 2)
    assert [h["outcome"] for h in db.history("a")] == ["lost", "completed"]


def test_zombie_of_ours_after_one_of_the_origin_only_recovered_the_task(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    db.age(120)
    origin.limit = 0
    assert origin.claim() is None
    assert db.status("a") == "pending"
    assert db.complete(pair) == ["stale"]
    assert db.status("a") == "pending"
    assert db.claim("v").ids == ["a"]


def test_a_worker_of_the_origin_can_fence_itself_by_its_own_columns(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    assert origin.claim() == "a"
    until_then = db.task("a")["locked_until"]
    db.age(120)
    second = OriginWorker(psycopg.connect(db.dsn))
    assert second.claim() == "a"
    late = origin.connection.execute(
        "UPDATE tasks SET status = 'completed' WHERE task_id = 'a' AND status = 'running' AND locked_until = %s",
        [until_then],
    )
    assert late.rowcount == 0
    assert second.complete("a") == 1
    second.close()


def test_the_origin_s_recovery_of_ours_keeps_the_attempts_and_their_story(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    origin.limit = 0
    for status in ("pending", "pending", "failed"):
        db.claim()
        db.age(120)
        origin.claim()
        assert db.status("a") == status
    task = db.task("a")
    assert (task["error"], task["error_code"], task["attempts"]) == ("worker timeout", "worker_timeout", 3)
    assert [h["outcome"] for h in db.history("a")] == ["lost", "lost", "lost"]
    assert db.retry("a") == "done"
    assert db.claim().ids == ["a"]


def test_a_failure_of_the_origin_can_be_retried_and_is_told(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    origin.claim()
    assert origin.fail("a", "no luck") == 1
    task = db.task("a")
    assert (task["status"], task["error"], task["error_code"], task["locked_until"]) == (
        "failed",
        "no luck",
        None,
        None,
    )
    assert [(h["outcome"], h["error"]) for h in db.history("a")] == [("failed", "no luck")]
    assert db.retry("a") == "done"
    assert origin.claim() == "a"
    origin.complete("a")
    assert [h["outcome"] for h in db.history("a")] == ["failed", "completed"]


def test_an_earlier_error_does_not_stick_to_what_the_origin_completes(db: Db, origin: OriginWorker) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    db.fail(pair, error="first", code="broken", retry=True, delay=0)
    assert origin.claim() == "a"
    origin.connection.execute("UPDATE tasks SET status = 'completed', result = '{}' WHERE task_id = 'a'")
    task = db.task("a")
    assert (task["status"], task["error"], task["error_code"]) == ("completed", None, None)


@pytest.mark.parametrize("end", ["complete", "recover"])
def test_cancel_holds_for_a_task_that_the_origin_runs(db: Db, origin: OriginWorker, end: str) -> None:
    db.enqueue("a")
    origin.claim()
    assert db.cancel("a") == "cancelling"
    if end == "complete":
        assert origin.complete("a", {"too": "late"}) == 1
    else:
        db.age(120)
        origin.claim()
    task = db.task("a")
    assert (task["status"], task["error"], task["error_code"], task["result"]) == (
        "failed",
        "cancelled",
        "cancelled",
        None,
    )
    assert [h["outcome"] for h in db.history("a")] == ["cancelled"]


def test_a_final_task_can_be_put_back_by_hand(db: Db) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    db.fail(pair)
    assert db.connection.execute("UPDATE tasks SET status = 'pending' WHERE task_id = 'a'").rowcount == 1
    task = db.task("a")
    assert (task["finished_at"], task["expires_at"]) == (None, None)
    assert db.claim().ids == ["a"]


def test_a_verbatim_worker_is_blind_and_two_predicates_cure_it(db: Db, origin: OriginWorker) -> None:
    db.enqueue("delayed", options='{"delay_seconds": 100}')
    db.enqueue("low", options='{"priority": 0}')
    db.enqueue("high", options='{"priority": 9}')
    assert [row["task_id"] for row in db.run(NOT_BLIND)] == ["high", "low"]
    assert [origin.claim(), origin.claim()] == ["delayed", "low"], "it goes by created_at alone"


def test_a_role_with_rights_on_tasks_alone(db: Db) -> None:
    db.run("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    try:
        db.run("GRANT SELECT, INSERT, UPDATE ON tasks TO plain")
        dsn = db.dsn.replace("//postgres:" + db.connection.info.password.replace("/", "%2F"), "//plain:plain")
        worker = OriginWorker(psycopg.connect(dsn))
        assert worker.connection.info.user == "plain"
        worker.insert("a")
        worker.insert("b")
        assert db.claim().ids == ["a"]
        assert worker.claim() == "b"
        assert worker.complete("b", {"fine": True}) == 1
        worker.insert("c")
        assert worker.claim() == "c"
        assert worker.fail("c", "broken") == 1
        assert worker.complete("a") == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.connection.execute("SELECT * FROM taskgate.settings")
        worker.close()
    finally:
        db.run("DROP OWNED BY plain")
        db.run("DROP ROLE plain")


def test_finished_tasks_are_told_only_while_somebody_waits(db: Db, origin: OriginWorker) -> None:
    ids = [f"task-{i:05}" for i in range(1500)]
    db.set_limit(2000)
    origin.limit = 2000
    db.enqueue(*ids, "mute", "loud")
    with db.another() as listener:
        listener.run("LISTEN taskgate_done")
        pairs = db.claim("w", 1500).pairs
        db.claim("mute", 1)
        assert origin.claim() == "loud"
        db.run("SELECT await_done(60)")
        assert db.complete(*pairs) == ["done"] * 1500
        assert origin.complete("loud") == 1
        heard: set[str] = set()

        def all_heard() -> Any:
            for notice in listener.connection.notifies(timeout=0.5):
                assert len(notice.payload) < 8000
                heard.update(notice.payload.split(","))
            return heard == {*ids, "loud"}

        until(all_heard, "every finished task is named")
