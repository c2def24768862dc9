"""What is claimed ahead has no attempt until it has surely begun: a worker that dies costs it none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.protocol.tools import Db

Pair = tuple[str, int]


def both(db: Db, slots: int = 1) -> tuple[list[Pair], list[Pair]]:
    """What has a slot, and what waits for one."""
    db.set_limit(100)
    db.enqueue(*(f"t{i:02}" for i in range(20)))
    pairs = db.claim("w", slots, ahead=4).pairs
    assert len(pairs) == slots + 4
    return pairs[:slots], pairs[slots:]


def attempts(db: Db, *pairs: Pair) -> list[int]:
    return [db.task(task_id)["attempts"] for task_id, _ in pairs]


def test_those_with_a_slot_are_counted(db: Db) -> None:
    begun, ahead = both(db, 3)
    assert (attempts(db, *begun), attempts(db, *ahead)) == ([1] * 3, [0] * 4)


def test_the_handler_is_told_its_first_attempt(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("a", "b")
    assert [row["attempt"] for row in db.claim("w", 1, ahead=9).rows] == [1, 1]
    assert [row["attempt"] for row in db.claim("w", 1, ahead=9).rows] == [1, 1], "the answer was lost"
    assert attempts(db, ("a", 0), ("b", 0)) == [1, 0]


BEGUN: dict[str, Callable[[Db, Pair], object]] = {
    "renew": lambda db, pair: db.renew(pair),
    "checkpoint": lambda db, pair: db.checkpoint(*pair, "1"),
    "progress": lambda db, pair: db.value("SELECT checkpoint(%s, %s, NULL, '1')", *pair),
    "intend": lambda db, pair: db.value("SELECT intend(%s, %s, '{}')", *pair),
    "save_operation": lambda db, pair: db.value("SELECT save_operation(%s, %s, '1')", *pair),
    "media": lambda db, pair: db.value("SELECT media_attach(%s, %s, 'a', 0, '', 0, '')", *pair),
}


@pytest.mark.parametrize("what", BEGUN)
def test_what_shows_that_it_has_begun_counts_it_once(db: Db, what: str) -> None:
    _, (first, *others) = both(db)
    for _ in range(2):
        assert BEGUN[what](db, first) in ("done", ["done"], "gone")
        assert attempts(db, first, *others) == [1, 0, 0, 0]
    assert [each["attempt"] for each in db.history(first[0])] == [1]
    assert db.complete(first) == ["done"]
    assert attempts(db, first) == [1]


@pytest.mark.parametrize("what", BEGUN)
def test_what_is_not_ours_any_more_is_not_counted(db: Db, what: str) -> None:
    _, (first, *_) = both(db)
    assert db.release(first) == ["done"]
    assert BEGUN[what](db, first) in ("stale", ["stale"])
    assert attempts(db, first) == [0]


def test_an_end_counts_it(db: Db) -> None:
    _, (completed, failed, again, thrown_back) = both(db)
    assert db.complete(completed) + db.fail(failed) + db.fail(again, retry=True, delay=9) == ["done"] * 3
    assert db.release(thrown_back, delay=1, code="throttled") == ["done"]
    assert attempts(db, completed, failed, again, thrown_back) == [1, 1, 1, 0]
    assert [db.status(each[0]) for each in (completed, failed, again)] == ["completed", "failed", "pending"]
    for pair in (completed, failed, again):
        assert [each["attempt"] for each in db.history(pair[0])] == [1]


def test_a_cancelled_one_ends_with_its_attempt(db: Db) -> None:
    _, (pair, *_) = both(db)
    assert db.cancel(pair[0]) == "cancelling"
    assert db.complete(pair) == ["done"]
    assert (db.status(pair[0]), attempts(db, pair)) == ("failed", [1])


def test_its_attempts_end_where_those_of_others_do(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("a", "b", options='{"max_attempts": 2}')
    pairs = db.claim("w", 1, ahead=9).pairs
    assert db.fail(*pairs, retry=True, delay=0) == ["done"] * 2
    pairs = db.claim("w", 2).pairs
    assert db.fail(*pairs, retry=True, delay=0) == ["done"] * 2
    assert [db.status(each) for each in "ab"] == ["failed"] * 2
    assert attempts(db, *pairs) == [2, 2]


def test_a_dead_worker_costs_an_attempt_of_what_had_a_slot_alone(db: Db) -> None:
    begun, ahead = both(db)
    db.age(100)
    assert db.recover() == 5
    assert (attempts(db, *begun), attempts(db, *ahead)) == ([1], [0] * 4)
    assert [each["outcome"] for each in db.history(ahead[0][0])] == ["lost"]


def test_one_that_kills_its_process_pays_alone(db: Db) -> None:
    """The second of the first five does it, whenever it is run; the worker starts anew, and claims ahead if it may."""
    db.set_limit(100)
    ids = [f"t{i:02}" for i in range(12)]
    db.enqueue(*ids)
    poison, deaths = ids[1], 0
    for _ in range(40):
        waiting = [pair for pair in db.claim(f"w{deaths}", 1, ahead=4).pairs if db.status(pair[0]) == "running"]
        if not waiting:
            break
        for pair in waiting:
            if pair[0] == poison:
                deaths += 1
                db.age(100)
                db.recover()
                break
            assert db.complete(pair) == ["done"]
    assert deaths == 1 + 3, "once more than its attempts, for the first time was not counted"
    assert (db.task(poison)["error"], db.task(poison)["attempts"]) == ("worker timeout", 3)
    assert {db.status(each) for each in ids if each != poison} == {"completed"}
    assert {db.task(each)["attempts"] for each in ids if each != poison} == {1}


# what is not taken ahead


@pytest.mark.parametrize(
    "why",
    [
        "max_attempts = 1",
        "max_attempts = 0",
        "start_before = now() + interval '1 hour'",
        "run_at = now() - interval '1 s'",
        "attempts = 1",
    ],
)
def test_what_may_not_be_started_in_vain_is_not_taken_ahead(db: Db, why: str) -> None:
    db.set_limit(100)
    db.enqueue(*(f"t{i:02}" for i in range(6)))
    db.run(f"UPDATE tasks SET {why} WHERE task_id IN ('t00', 't01', 't02')")
    assert db.claim("w", 1, ahead=9).ids == ["t00"], "nor is what stands behind it"
    assert db.claim("v", 0, ahead=9).outcome == "full"
    assert db.claim("v", 2, ahead=1).ids == ["t01", "t02", "t03"]
    assert db.claim("u", 0, ahead=9).ids == ["t04", "t05"]


def test_a_first_one_that_may_not_be_taken_ahead_is_not_overtaken(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("t1", "t2")
    db.enqueue("urgent", options='{"priority": 9, "start_within_seconds": 60}')
    assert db.claim("w", 0, ahead=9).outcome == "full"
    assert db.claim("w", 1, ahead=9).ids == ["urgent", "t1", "t2"]


def test_without_a_slot_nothing_is_left_of_it(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("a", "b", options='{"max_attempts": 1}')
    assert db.claim("w", 0, ahead=9).outcome == "full"
    assert [db.status(each) for each in "ab"] == ["pending"] * 2
    assert db.claim("w", 2).ids == ["a", "b"]


def test_a_fleet_that_tries_once_claims_nothing_ahead(db: Db) -> None:
    db.set_limit(100)
    db.run("UPDATE settings SET max_attempts = 1")
    db.enqueue("a", "b", "c")
    assert db.claim("w", 1, ahead=9).ids == ["a"]
    assert db.claim("v", 0, ahead=9).outcome == "full"


def test_what_came_back_has_to_start_in_time_still(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("first")
    db.enqueue("urgent", options='{"start_within_seconds": 60}')
    assert db.claim("w", 1, ahead=9).ids == ["first"]
    assert db.task("urgent")["start_before"] is not None
