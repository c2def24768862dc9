"""claim(p_ahead): how many tasks a process gets beyond its free slots, and whom that must not harm."""

from __future__ import annotations

import pytest

from tests.protocol.tools import Db


def many(db: Db, count: int = 40, task_type: str = "llm", prefix: str = "t") -> list[str]:
    ids = [f"{prefix}{i:03}" for i in range(count)]
    db.enqueue(*ids, task_type=task_type)
    return ids


@pytest.mark.parametrize(
    ("limit", "slots", "ahead", "expected"),
    [
        (100, 1, None, 1),
        (100, 1, 0, 1),
        (100, 1, -5, 1),
        (100, 1, 9, 10),
        (100, 4, 9, 13),
        (100, 0, 9, 9),
        (20, 1, 30, 10),  # half of the limit
        (20, 0, 30, 10),
        (20, 9, 30, 10),
        (20, 15, 30, 15),  # the slots alone
        (7, 1, 9, 3),
        (3, 1, 9, 1),
        (2, 1, 9, 1),
        (2, 0, 9, 1),
        (1, 1, 9, 1),
        (1, 0, 9, 0),
        (0, 1, 9, 0),
        (0, 0, 9, 0),
    ],
)
def test_no_more_than_half_of_the_limit_is_held_by_claiming_ahead(
    db: Db, limit: int, slots: int, ahead: int | None, expected: int
) -> None:
    db.set_limit(limit)
    ids = many(db)
    answer = db.claim("w", slots, ahead=ahead)
    assert answer.ids == ids[:expected], "in order"
    assert answer.outcome == ("claimed" if expected else "full")
    assert db.running() == expected


def test_ahead_is_bounded_by_what_others_leave(db: Db) -> None:
    db.set_limit(10)
    many(db)
    assert len(db.claim("other", 7).ids) == 7
    assert len(db.claim("w", 1, ahead=9).ids) == 3, "the room"
    assert db.claim("third", 1, ahead=9).outcome == "full"
    assert db.claim("third", 0, ahead=9).outcome == "full"
    db.set_limit(4)
    assert db.claim("third", 1, ahead=9).outcome == "full", "more run than the limit, which was lowered"
    assert db.running() == 10


def test_several_processes_claim_ahead_up_to_the_limit(db: Db) -> None:
    db.set_limit(10)
    many(db)
    assert [len(db.claim(name, 1, ahead=9).ids) for name in "abc"] == [5, 5, 0]
    assert db.running() == 10


def test_what_is_held_already_counts_among_the_half(db: Db) -> None:
    db.set_limit(20)
    many(db)
    held = db.claim("w", 7).tokens
    held += db.claim("w", 1, held, ahead=9).tokens
    assert len(held) == 10
    assert db.claim("w", 0, held, ahead=9).outcome == "full"
    answer = db.claim("w", 3, held, ahead=9)
    assert len(answer.ids) == 3, "slots have no such bound"
    db.complete(*answer.pairs)
    db.run("UPDATE tasks SET status = 'completed', settled_token = claim_token WHERE status = 'running'")
    assert len(db.claim("w", 1, held, ahead=9).ids) == 10, "what has just been settled is not held any more"


def test_less_waits_than_asked_for(db: Db) -> None:
    db.set_limit(100)
    ids = many(db, 5)
    assert db.claim("w", 1, ahead=9).ids == ids
    assert db.claim("v", 1, ahead=9).outcome == "empty"
    assert db.claim("v", 0, ahead=9).outcome == "empty"


# tasks of other types


@pytest.mark.parametrize("other", ["aaa", "zzz"])
def test_nothing_is_claimed_ahead_while_other_types_wait(db: Db, other: str) -> None:
    db.set_limit(100)
    many(db)
    db.enqueue("other", task_type=other)
    assert len(db.claim("w", 2, ahead=9).ids) == 2
    assert db.claim("v", 0, ahead=9).outcome in ("full", "empty"), "nothing without a slot"
    assert db.running() == 2
    assert len(db.claim("u", 1, types=["llm", other], ahead=9).ids) == 10, "who serves both may"


def test_every_registered_type_is_served_by_null(db: Db) -> None:
    db.set_limit(100)
    many(db)
    many(db, task_type="veo", prefix="v")
    assert len(db.claim("w", 1, types=None, ahead=9).ids) == 10
    db.enqueue("unknown", task_type="nobody registered this")
    assert len(db.claim("v", 1, types=None, ahead=9).ids) == 1


def test_tenants_share_what_is_claimed_ahead(db: Db) -> None:
    db.set_limit(100)
    for tenant in ("large", "small"):
        db.enqueue(*(f"{tenant}{i:02}" for i in range(20)), options=f'{{"tenant": "{tenant}"}}')
    ids = db.claim("w", 1, ahead=9).ids
    assert sorted(each[:5] for each in ids) == ["large"] * 5 + ["small"] * 5


# lost answers


def test_all_that_was_lost_comes_again_at_once(db: Db) -> None:
    db.set_limit(100)
    ids = many(db)
    lost = db.claim("w", 1, ahead=9)
    again = db.claim("w", 1, ahead=2)
    assert again.pairs == lost.pairs
    assert {row["outcome"] for row in again.rows} == {"again"}
    assert db.claim("w", 1, again.tokens[:9], ahead=0).pairs == lost.pairs[9:], (
        "it can hold it, even without asking for more"
    )
    assert [db.task(each)["attempts"] for each in ids[:10]] == [1] + [0] * 9
    assert db.running() == 10


def test_what_comes_again_counts_among_what_is_asked_for(db: Db) -> None:
    db.set_limit(100)
    ids = many(db)
    lost = db.claim("w", 1, ahead=3)
    answer = db.claim("w", 2, ahead=5)
    assert answer.ids == ids[:7]
    assert [row["outcome"] for row in answer.rows] == ["again"] * 4 + ["claimed"] * 3
    assert answer.tokens[:4] == lost.tokens
    assert len(db.claim("w", 0, answer.tokens[1:], ahead=0).ids) == 1


def test_a_process_that_has_slots_only_gets_lost_ones_by_slots(db: Db) -> None:
    db.set_limit(100)
    lost = db.claim("w", 1) if many(db) else None
    assert lost is not None
    more = db.claim("w", 3, lost.tokens)
    assert db.claim("w", 1, lost.tokens).pairs == more.pairs[:1]
    assert db.claim("w", 2, lost.tokens + more.tokens[:1]).pairs == more.pairs[1:]


def test_lost_ones_do_not_break_the_limit(db: Db) -> None:
    db.set_limit(6)
    many(db)
    lost = db.claim("w", 1, ahead=9)
    assert len(lost.ids) == 3
    answer = db.claim("w", 1, ahead=9)
    assert [row["outcome"] for row in answer.rows] == ["again"] * 3, "that is half of it"
    answer = db.claim("w", 9, ahead=9)
    assert [row["outcome"] for row in answer.rows] == ["again"] * 3 + ["claimed"] * 3
    assert db.running() == 6


# groups


@pytest.mark.parametrize(("scope", "name"), [("type", "llm"), ("tenant", "t"), ("model", "m")])
def test_limits_of_groups_hold(db: Db, scope: str, name: str) -> None:
    db.set_limit(100)
    db.run("SELECT set_limit(%s, %s, 3)", scope, name)
    db.enqueue(*(f"t{i}" for i in range(9)), options='{"tenant": "t"}', request='{"model": "m"}')
    if not db.value("SELECT model FROM tasks LIMIT 1"):
        db.run("UPDATE tasks SET model = 'm'")
    answer = db.claim("w", 1, ahead=9)
    assert len(answer.ids) == 3
    assert db.claim("v", 1, ahead=9).outcome == "limited"
    db.release(*answer.pairs[1:])
    assert len(db.claim("v", 1, ahead=9).ids) == 1, "what came back is not taken ahead again"
    assert len(db.claim("v2", 9, ahead=9).ids) == 1
    assert db.running() == 3


def test_limits_of_groups_hold_beside_groups_without(db: Db) -> None:
    db.set_limit(100)
    db.run("SELECT set_limit('tenant', 'a', 2)")
    for tenant in ("a", "b"):
        db.enqueue(*(f"{tenant}{i:02}" for i in range(20)), options=f'{{"tenant": "{tenant}"}}')
    ids = db.claim("w", 1, ahead=9).ids
    assert sorted(each[0] for each in ids) == ["a"] * 2 + ["b"] * 8


def test_a_rate_holds_and_nothing_is_claimed_ahead_under_it(db: Db) -> None:
    """A start that is given back is spent: claimed ahead it could use up the minute for nothing."""
    db.set_limit(100)
    db.run("SELECT set_rate('type', 'llm', 60, 5)")
    many(db)
    assert len(db.claim("w", 1, ahead=9).ids) == 1
    assert db.claim("w2", 0, ahead=9).outcome in ("full", "limited", "empty")
    assert len(db.claim("v", 9, ahead=9).ids) == 4
    assert db.claim("u", 1, ahead=9).outcome == "limited"
    db.run("SELECT remove_limit('type', 'llm')")
    assert len(db.claim("u", 1, ahead=9).ids) == 10


def test_nothing_is_claimed_ahead_under_a_limit_of_tokens(db: Db) -> None:
    db.set_limit(100)
    db.run("SELECT set_rate('type', 'llm', NULL, NULL, 600, 600)")
    db.enqueue(*(f"t{i}" for i in range(9)), request='{"max_tokens": 190}')
    assert len(db.claim("w", 1, ahead=9).ids) == 1
    assert len(db.claim("v", 9, ahead=9).ids) == 2
    assert db.claim("u", 1, ahead=9).outcome == "limited"


def test_nothing_is_claimed_ahead_during_a_cool_down(db: Db) -> None:
    db.set_limit(100)
    many(db)
    (pair,) = db.claim("w", 1).pairs
    assert db.release(pair, delay=30, code="throttled") == ["done"]
    assert db.claim("w", 1, ahead=9).outcome == "limited"
    assert db.running() == 0
