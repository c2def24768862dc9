"""complete, fail, release, renew, checkpoint, cancel, retry: one verdict a row, and the tokens behind it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.protocol.tools import Db

Settle = Callable[[Db, tuple[str, int]], list[str]]
VERBS: dict[str, Settle] = {
    "complete": lambda db, pair: db.complete(pair),
    "fail": lambda db, pair: db.fail(pair),
    "fail and retry": lambda db, pair: db.fail(pair, retry=True, delay=0),
    "release": lambda db, pair: db.release(pair),
}


@pytest.mark.parametrize("verb", VERBS)
def test_done_then_already_then_stale(db: Db, verb: str) -> None:
    settle = VERBS[verb]
    db.enqueue("a")
    (pair,) = db.claim().pairs
    assert settle(db, pair) == ["done"]
    after = db.task("a")
    assert settle(db, pair) == ["already"], "the answer was lost, the write was not"
    assert db.task("a") == after
    for other in VERBS.values():
        assert other(db, ("a", pair[1] + 1)) == ["stale"]
        assert other(db, ("nobody", 1)) == ["stale"]
        assert other(db, ("a", 0)) == ["stale"]
    assert db.renew(pair) == ["stale"]
    assert db.checkpoint(*pair, "{}") == "stale"
    assert db.task("a") == after


@pytest.mark.parametrize("verb", ["fail and retry", "release"])
def test_already_is_still_known_after_the_next_attempt(db: Db, verb: str) -> None:
    db.enqueue("a")
    (first,) = db.claim().pairs
    VERBS[verb](db, first)
    (second,) = db.claim().pairs
    assert VERBS[verb](db, first) == ["already"]
    assert db.complete(second) == ["done"]
    assert VERBS[verb](db, first) == ["already"]
    assert db.status("a") == "completed"


@pytest.mark.parametrize("verb", VERBS)
def test_a_token_that_recovery_outdated_changes_nothing(db: Db, verb: str) -> None:
    db.enqueue("a")
    (old,) = db.claim("frozen").pairs
    db.age(120)
    db.recover()
    before = db.task("a")
    assert VERBS[verb](db, old) == ["stale"]
    assert db.renew(old) == ["stale"]
    assert db.task("a") == before
    (new,) = db.claim("alive").pairs
    before = db.task("a")
    assert VERBS[verb](db, old) == ["stale"]
    assert db.task("a") == before
    assert db.complete(new, result='{"by": "alive"}') == ["done"]
    assert VERBS[verb](db, old) == ["stale"]
    assert db.task("a")["result"] == {"by": "alive"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_batch_answers_row_by_row_and_empty_ones_are_fine(db: Db, verb: str) -> None:
    db.enqueue("a", "b")
    a, b = db.claim("w", 2).pairs
    db.complete(a)
    calls: dict[str, Callable[..., list[str]]] = {
        "complete": db.complete,
        "fail": db.fail,
        "fail and retry": lambda *pairs: db.fail(*pairs, retry=True),
        "release": db.release,
    }
    assert calls[verb](("a", a[1] + 99), b, b, ("b", 1), ("c", 1)) == ["stale", "done", "done", "stale", "stale"]
    assert calls[verb]() == []


def test_a_retry_waits_with_backoff_and_jitter(db: Db) -> None:
    ids = [f"t{i:03}" for i in range(200)]
    db.set_limit(1000)
    db.enqueue(*ids)
    for attempt, (least, most) in enumerate(((0.5, 1.5), (1.0, 3.0)), start=1):
        pairs = db.claim(f"w{attempt}", 200).pairs
        assert db.fail(*pairs, retry=True) == ["done"] * 200
        waits = [r["s"] for r in db.run("SELECT extract(epoch FROM run_at - updated_at)::float8 AS s FROM tasks")]
        assert least <= min(waits) < max(waits) <= most
        assert max(waits) - min(waits) > (most - least) / 3, "jitter"
        db.age(10)
    pairs = db.claim("w3", 200).pairs
    assert db.fail(*pairs, retry=True) == ["done"] * 200, "the third attempt was the last"
    assert db.value("SELECT count(*) FROM tasks WHERE status = 'failed' AND attempts = 3 AND expires_at > now()") == 200
    assert db.value("SELECT count(*) FROM task_attempts WHERE outcome = 'retried'") == 400
    assert db.value("SELECT max(extract(epoch FROM backoff(a))) FROM generate_series(1, 40) a") <= 450


def test_a_task_s_own_number_of_attempts_and_a_given_delay(db: Db) -> None:
    db.enqueue("a", options='{"max_attempts": 2}')
    (pair,) = db.claim().pairs
    assert db.claim("x").outcome == "empty"
    db.fail(pair, retry=True, delay=12.5)
    assert db.value("SELECT run_at - updated_at FROM tasks") == timedelta(seconds=12.5)
    db.age(13)
    (pair,) = db.claim().pairs
    db.fail(pair, error="again", code="broken", retry=True)
    task = db.task("a")
    assert (task["status"], task["error"], task["error_code"], task["attempts"]) == ("failed", "again", "broken", 2)
    assert task["expires_at"] - task["finished_at"] == db.value("SELECT result_ttl FROM settings")


def test_a_failure_without_word_on_retry_is_final(db: Db) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    db.run("SELECT fail(%s, %s, ARRAY['e'], ARRAY['c'], NULL, NULL, NULL)", [pair[0]], [pair[1]])
    assert db.task("a")["finished_at"] is not None
    assert db.task("a")["expires_at"] is not None


def test_release_costs_no_attempt_and_comes_back_near_the_head(db: Db) -> None:
    db.enqueue("a", "b")
    (pair,) = db.claim().pairs
    assert db.release(pair) == ["done"]
    task = db.task("a")
    assert (task["status"], task["attempts"], task["releases"]) == ("pending", 0, 1)
    assert db.claim("v").ids == ["a"]
    assert [h["outcome"] for h in db.history("a")] == ["released", "running"]


def test_the_throttle_budget_has_an_end(db: Db) -> None:
    db.run("UPDATE settings SET max_throttle = '100 seconds'")
    db.enqueue("a", "snoozed")
    for outcome in ("pending", "pending", "failed"):
        (pair,) = db.claim(types=["llm"], held=[0]).pairs[:1]
        assert pair[0] == "a"
        assert db.release(pair, delay=45, code="throttled") == ["done"]
        assert db.status("a") == outcome
        db.age(46, "a")
    assert (db.task("a")["error_code"], db.task("a")["error"]) == ("throttled", "said so")
    for _ in range(4):
        (pair,) = db.claim().pairs
        assert db.release(pair, delay=45, code="snoozed") == ["done"]
        db.age(46, "snoozed")
    assert db.status("snoozed") == "pending", "a handler's own snooze is not throttling"


def test_renew_prolongs_and_tells_of_cancellation(db: Db) -> None:
    db.enqueue("a", "b", "c")
    a, b, c = db.claim("w", 3).pairs
    db.age(50)
    db.complete(c)
    assert db.cancel("b") == "cancelling"
    assert db.renew(b, a, ("a", 1), c) == ["cancel", "done", "stale", "stale"]
    left = db.value("SELECT min(locked_until - clock_timestamp()) FROM tasks WHERE status = 'running'")
    assert left > timedelta(seconds=50)


def test_a_row_that_an_operator_holds_costs_the_others_nothing(db: Db) -> None:
    db.enqueue("a", "b", "c")
    a, b, c = db.claim("w", 3).pairs
    db.age(30)
    with db.another() as operator, operator.connection.transaction():
        operator.run("UPDATE tasks SET priority = 9 WHERE task_id = 'b'")
        assert db.renew(a, b, c) == ["done", "busy", "done"]
        assert db.renew(("b", b[1] + 1)) == ["stale"], "no lease to wait for"
    assert db.renew(b) == ["done"]


def test_cancel_of_a_waiting_task(db: Db) -> None:
    db.enqueue("a")
    assert db.cancel("a") == "cancelled"
    assert db.cancel("a") == "already"
    assert db.cancel("nobody") == "not_found"
    assert db.value("SELECT cancel('a', 'another tenant')") == "not_found"
    task = db.task("a")
    assert (task["status"], task["error"], task["error_code"]) == ("failed", "cancelled", "cancelled")
    assert db.claim().outcome == "empty"


@pytest.mark.parametrize("verb", VERBS)
def test_a_task_whose_cancellation_was_asked_for_ends_cancelled(db: Db, verb: str) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    assert db.cancel("a") == "cancelling"
    assert db.cancel("a") == "cancelling"
    assert VERBS[verb](db, pair) == ["done"]
    task = db.task("a")
    assert (task["status"], task["error"], task["error_code"], task["result"]) == (
        "failed",
        "cancelled",
        "cancelled",
        None,
    )
    assert task["expires_at"] is not None
    assert [h["outcome"] for h in db.history("a")] == ["cancelled"]
    assert VERBS[verb](db, pair) == ["already"]
    assert db.cancel("a") == "already"


def test_a_cancelled_task_of_a_dead_worker_ends_cancelled(db: Db) -> None:
    db.enqueue("a")
    (pair,) = db.claim().pairs
    db.cancel("a")
    db.age(120)
    assert db.recover() == 1
    assert (db.status("a"), db.task("a")["error"]) == ("failed", "cancelled")
    assert db.complete(pair) == ["stale"]


def test_cancel_of_finished_tasks(db: Db) -> None:
    db.enqueue("a", "b")
    a, b = db.claim("w", 2).pairs
    db.complete(a)
    db.fail(b)
    assert [db.cancel("a"), db.cancel("b")] == ["finished", "finished"]


def test_retry_gives_all_attempts_again_and_keeps_the_story(db: Db) -> None:
    db.enqueue("a", options='{"max_attempts": 1}')
    (pair,) = db.claim().pairs
    assert db.retry("a") == "not_failed"
    db.checkpoint(*pair, '{"at": 7}')
    db.fail(pair, error="first life")
    assert db.value("SELECT retry('a', 'another tenant')") == "not_found"
    assert [db.retry("a"), db.retry("a"), db.retry("nobody")] == ["done", "not_failed", "not_found"]
    task = db.task("a")
    assert (task["status"], task["attempts"], task["error"], task["expires_at"]) == ("pending", 0, None, None)
    assert db.fail(pair) == ["already"]
    (row,) = db.claim().rows
    assert row["checkpoint"] == {"at": 7}
    db.complete((row["task_id"], row["token"]))
    assert db.retry("a") == "not_failed"
    assert [(h["outcome"], h["error"]) for h in db.history("a")] == [("failed", "first life"), ("completed", None)]


def test_a_checkpoint_survives_every_way_back_to_the_queue(db: Db) -> None:
    db.enqueue("a", options='{"max_attempts": 9}')
    (row,) = db.claim().rows
    assert row["checkpoint"] is None
    assert db.checkpoint("a", row["token"], '{"step": 1}') == "done"
    for way in ("release", "fail", "recover"):
        pair = ("a", row["token"])
        if way == "release":
            db.release(pair)
        elif way == "fail":
            db.fail(pair, retry=True, delay=0)
        else:
            db.age(120)
            db.recover()
        (row,) = db.claim().rows
        assert row["checkpoint"] == {"step": 1}, way
    assert db.checkpoint("a", row["token"], '{"step": 2}') == "done"
    db.run("SELECT checkpoint('a', %s, NULL, '{\"percent\": 5}')", row["token"])
    db.release(("a", row["token"]))
    assert db.claim().rows[0]["checkpoint"] == {"step": 2}, "the last one"
