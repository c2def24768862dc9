"""Results written and slots refilled in one transaction."""

from __future__ import annotations

import psycopg
import pytest

from tests.protocol.tools import Answer, Background, Db, until, waits_for_lock

SKIPPED = Answer("skipped")


@pytest.fixture
def two_run(db: Db) -> list[tuple[str, int]]:
    """The limit is 2, and w holds a and b of six."""
    db.set_limit(2)
    db.enqueue(*"abcdef")
    pairs = db.claim("w", 2).pairs
    assert [task_id for task_id, _ in pairs] == ["a", "b"]
    return pairs


def test_what_is_freed_is_claimed_again(db: Db, two_run: list[tuple[str, int]]) -> None:
    verdicts, answer = db.complete_and_claim(*two_run, slots=2, result='{"n": 1}')
    assert verdicts == ["done", "done"]
    assert answer.ids == ["c", "d"]
    assert db.running() == 2
    done, begun = db.task("a"), db.task("c")
    assert (done["status"], done["result"]) == ("completed", {"n": 1})
    assert begun["started_at"] >= done["finished_at"], "the rows' own times prove the limit"
    assert begun["attempts"] == 1


def test_no_more_than_was_freed(db: Db, two_run: list[tuple[str, int]]) -> None:
    held = [token for _, token in two_run]
    verdicts, answer = db.complete_and_claim(two_run[0], slots=5, held=held)
    assert verdicts == ["done"]
    assert answer.ids == ["c"], "b is held, and does not come again"
    assert db.running() == 2


def test_what_was_lost_comes_again(db: Db, two_run: list[tuple[str, int]]) -> None:
    _, answer = db.complete_and_claim(two_run[0], slots=2)
    assert [(row["task_id"], row["outcome"]) for row in answer.rows] == [("b", "again"), ("c", "claimed")]


def test_results_do_not_wait_for_the_claim_lock(db: Db, two_run: list[tuple[str, int]]) -> None:
    with db.another() as claimer, claimer.connection.transaction():
        claimer.run("SELECT pg_advisory_xact_lock(lock_key())")
        assert db.complete_and_claim(*two_run, slots=2) == (["done", "done"], SKIPPED)
        assert db.status("a") == "completed"
    assert db.running() == 0


def test_others_have_a_chance_of_the_room(db: Db, two_run: list[tuple[str, int]]) -> None:
    db.enqueue("v", task_type="veo")
    assert db.complete_and_claim(two_run[0], slots=1) == (["done"], SKIPPED)
    verdicts, answer = db.complete_and_claim(two_run[1], slots=2, types=["llm", "veo"])
    assert verdicts == ["done"]
    assert len(answer.ids) == 2, "it serves them all"


def test_a_result_that_could_not_be_written(db: Db, two_run: list[tuple[str, int]]) -> None:
    with db.another() as operator:
        with operator.connection.transaction():
            operator.run("SELECT FROM tasks WHERE task_id = 'a' FOR UPDATE")
            verdicts, answer = db.complete_and_claim(*two_run, slots=2)
        assert verdicts == ["busy", "done"]
        assert answer.ids == ["c"], "a is still its own and running"
    verdicts, _ = db.complete_and_claim(("b", two_run[1][1]), ("d", 1), two_run[0], slots=0)
    assert verdicts == ["already", "stale", "done"]


def test_a_result_that_is_no_json_changes_nothing(db: Db, two_run: list[tuple[str, int]]) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        db.complete_and_claim(*two_run, slots=2, result="{")
    assert {db.status(task_id) for task_id in "ab"} == {"running"}
    assert db.claim("w", 0, [token for _, token in two_run]).outcome == "full"


def test_a_cancelled_task_ends_so(db: Db, two_run: list[tuple[str, int]]) -> None:
    assert db.cancel("a") == "cancelling"
    verdicts, answer = db.complete_and_claim(two_run[0], slots=1, held=[token for _, token in two_run])
    assert (verdicts, answer.ids) == (["done"], ["c"])
    assert (db.status("a"), db.task("a")["error"]) == ("failed", "cancelled")


def test_a_limit_that_was_lowered(db: Db, two_run: list[tuple[str, int]]) -> None:
    db.set_limit(1)
    verdicts, answer = db.complete_and_claim(two_run[0], slots=1, held=[token for _, token in two_run])
    assert (verdicts, answer.outcome) == (["done"], "full")
    verdicts, answer = db.complete_and_claim(two_run[1], slots=1)
    assert (verdicts, answer.ids) == (["done"], ["c"])


def test_it_does_not_go_idle(db: Db, two_run: list[tuple[str, int]]) -> None:
    """Nobody listens on the session that writes results: the claim that follows says so on its own."""
    db.run("DELETE FROM tasks WHERE status = 'pending'")
    verdicts, answer = db.complete_and_claim(*two_run, slots=2)
    assert (verdicts, answer.outcome) == (["done", "done"], "empty")
    assert not db.value("SELECT current_setting('taskgate.idle', true)")
    assert not db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")


def test_two_that_refill_at_once_keep_the_limit(db: Db) -> None:
    """A is in the middle of it: B writes its result and leaves the room alone, and may have it afterwards."""
    db.set_limit(2)
    db.enqueue(*"abcdef")
    (a,), (b,) = db.claim("A").pairs, db.claim("B").pairs
    with db.another() as mine, db.another() as other:
        with mine.connection.transaction():
            _, answer = mine.complete_and_claim(a, worker="A")
            assert answer.ids == ["c"]
            assert other.complete_and_claim(b, worker="B") == (["done"], SKIPPED)
            waiting = Background(lambda: other.claim("B", 2, [b[1]]))
            until(waits_for_lock(db, other.connection.info.backend_pid), "B to stand in line")
        assert waiting.result().ids == ["d"]
    assert db.running() == 2
