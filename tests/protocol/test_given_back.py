"""What is claimed ahead: who is idle beside it, who is told of room, and what becomes of it when it is given back."""

from __future__ import annotations

from tests.protocol.tools import Db


def many(db: Db, count: int = 40, prefix: str = "t") -> list[str]:
    ids = [f"{prefix}{i:03}" for i in range(count)]
    db.enqueue(*ids)
    return ids


# who is idle


def seated(db: Db, number: int) -> bool:
    with db.another() as beside:
        return bool(beside.value("SELECT is_idle(%s)", number))


def test_who_counts_as_idle(db: Db) -> None:
    """By its slots alone; else it is woken in others' stead."""
    db.set_limit(100)
    number = db.another().value("SELECT listen_alone('{llm}')")
    with db.another() as worker:
        held: list[int] = []

        def claim(slots: int, ahead: int) -> int:
            answer = worker.claim("w", slots, held, listener=number, ahead=ahead)
            held.extend(answer.tokens)
            return len(answer.ids)

        assert (claim(1, 9), seated(db, number)) == (0, True)
        many(db, 4)
        assert (claim(1, 9), seated(db, number)) == (4, False), "fewer than asked for, but its slot is filled"
        assert (claim(0, 9), seated(db, number)) == (0, False), "nothing there, and no slot free"
        assert (claim(0, 0), seated(db, number)) == (0, False)
        many(db, 2, prefix="u")
        assert (claim(3, 9), seated(db, number)) == (2, True), "one of its slots is free"
        assert (claim(1, 9), seated(db, number)) == (0, True)
        many(db, 1, prefix="v")
        assert (claim(0, 60), seated(db, number)) == (1, False)
        held.pop()
        assert (claim(1, 9), seated(db, number)) == (1, False), "its slot is filled by what it had lost"


def test_a_busy_worker_is_never_seated_not_even_for_a_moment(db: Db) -> None:
    """A task that comes while it claims for no slot wakes the one that is idle, and nobody else."""
    db.set_limit(100)
    listeners = [db.another() for _ in range(2)]
    numbers = [each.value("SELECT listen_alone('{llm}')") for each in listeners]
    busy, idle = db.another(), db.another()
    assert idle.claim("idle", 1, listener=numbers[1]).outcome == "empty"
    with busy.connection.transaction():
        assert busy.claim("busy", 0, listener=numbers[0], ahead=60).outcome == "empty"
        assert not seated(db, numbers[0])
    flag = "SELECT coalesce(pg_sequence_last_value('waiting_room_until'), 0)"
    assert db.value(flag) == 0


def heard(listener: Db) -> bool:
    listener.run("SELECT 1")
    return bool(list(listener.connection.notifies(timeout=0.3, stop_after=1)))


def test_who_has_no_slot_free_does_not_wait_for_room(db: Db) -> None:
    db.set_limit(2)
    many(db)
    answer = db.claim("w", 2)
    listener = db.another()
    listener.run("LISTEN taskgate_ready")
    assert db.claim("w", 0, answer.tokens, ahead=0).outcome == "full"
    assert db.claim("w", 0, answer.tokens, ahead=60).outcome == "full"
    db.release(answer.pairs[0])
    assert not heard(listener), "nobody waits at the limit"


def test_what_is_given_back_is_announced_to_those_at_the_limit(db: Db) -> None:
    db.set_limit(8)
    many(db)
    answer = db.claim("w", 2, ahead=9)
    db.set_limit(4)
    assert len(answer.ids) == 4
    listener = db.another()
    listener.run("LISTEN taskgate_ready")
    assert db.claim("at the limit", 1, listener=0).outcome == "full"
    assert db.release(*answer.pairs[1:]) == ["done"] * 3
    assert heard(listener)
    row = db.task(answer.ids[1])
    assert (row["status"], row["attempts"], row["releases"]) == ("pending", 0, 1)
    assert [each["outcome"] for each in db.history(answer.ids[1])] == ["released"]
    assert db.claim("at the limit", 3, listener=0).ids == answer.ids[1:], "before those that came later"


def test_room_that_what_was_claimed_ahead_leaves_is_passed_on(db: Db) -> None:
    """Its slots are taken, so it cannot use the room itself: those at the limit need not wait for their next look."""
    db.set_limit(8)
    many(db)
    answer = db.claim("w", 2, ahead=9)
    db.set_limit(4)
    listener = db.another()
    listener.run("LISTEN taskgate_ready")
    assert db.claim("at the limit", 1, listener=0).outcome == "full"
    db.complete(*answer.pairs[:2])
    assert db.claim("w", 0, answer.tokens[2:], ahead=0, listener=0).outcome == "full"
    assert heard(listener)
    assert db.claim("w", 0, answer.tokens[2:], ahead=0, listener=0).outcome == "full"
    assert not heard(listener), "once"
    assert len(db.claim("at the limit", 9, listener=0).ids) == 2


def test_room_is_not_passed_on_when_nothing_waits(db: Db) -> None:
    db.set_limit(8)
    many(db, 4)
    answer = db.claim("w", 2, ahead=9)
    db.set_limit(4)
    listener = db.another()
    listener.run("LISTEN taskgate_ready")
    assert db.claim("at the limit", 1, listener=0).outcome == "full"
    db.complete(*answer.pairs[:2])
    assert db.claim("w", 0, answer.tokens[2:], ahead=0, listener=0).outcome == "full"
    assert not heard(listener)


# given back


def test_what_has_an_open_operation_keeps_it(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("first", "paid", "other")
    (pair,) = [each for each in db.claim("v", 2).pairs if each[0] == "paid"]
    assert db.value("SELECT intend(%s, %s, '{}')", *pair) == "done"
    assert db.value("SELECT save_operation(%s, %s, '\"op-1\"')", *pair) == "done"
    assert db.checkpoint(*pair, '{"at": 1}') == "done"
    db.release(
        *[(row["task_id"], row["claim_token"]) for row in db.run("SELECT * FROM tasks WHERE status = 'running'")]
    )
    for worker in ("w", "u"):
        answer = db.claim(worker, 9, ahead=9)
        (row,) = [each for each in answer.rows if each["task_id"] == "paid"]
        assert row["paid"]["operation"] == "op-1"
        assert row["checkpoint"] == {"at": 1}
        assert row["attempt"] == 1
        assert set(db.release(*answer.pairs)) == {"done"}
    assert (db.task("paid")["attempts"], db.task("paid")["releases"]) == (0, 3)


def test_what_was_cancelled_while_it_waited_ends_when_it_is_given_back(db: Db) -> None:
    db.set_limit(100)
    db.enqueue("first", "cancelled")
    answer = db.claim("w", 1, ahead=9)
    assert db.cancel("cancelled") == "cancelling"
    assert db.release(answer.pairs[1]) == ["done"]
    row = db.task("cancelled")
    assert (row["status"], row["error_code"]) == ("failed", "cancelled")
