"""Idle workers are woken one by one, each on its own channel."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.protocol.tools import Db, until

Hire = Callable[..., "Sleeper"]


class Sleeper:
    """A worker of two sessions: one listens, the other claims."""

    def __init__(self, db: Db, name: str, types: tuple[str, ...] = ("llm",)) -> None:
        self.name, self.types = name, types
        self.listener, self.claims = db.another(), db.another()
        self.number = self.listener.value("SELECT listen_alone(%s)", list(types))
        self.held: list[int] = []
        self.notices: list[psycopg.Notify] = []
        self.listener.connection.add_notify_handler(self.notices.append)

    def claim(self, slots: int = 1) -> list[str] | str:
        answer = self.claims.claim(self.name, slots, self.held, types=self.types, listener=self.number)
        self.held += answer.tokens
        return answer.ids or answer.outcome

    def woken(self) -> bool:
        """Whether it was, since it was last asked; a round trip fetches what was sent before."""
        self.listener.run("SELECT 1")
        self.listener.run("SELECT 1")
        found = [each.channel for each in self.notices]
        self.notices.clear()
        assert set(found) <= {f"taskgate_ready_{self.number}"}
        return bool(found)


@pytest.fixture
def hire(db: Db) -> Hire:
    db.set_limit(100)
    return lambda name, types=("llm",): Sleeper(db, name, types)


def test_one_task_wakes_the_first_of_many_and_one_at_random(db: Db, hire: Hire) -> None:
    sleepers = [hire(f"w{i}") for i in range(8)]
    assert {each.claim() for each in sleepers} == {"empty"}
    chosen: set[int] = set()
    first = min(each.number for each in sleepers)
    for i in range(20):
        db.enqueue(f"t{i}")
        woken = [each for each in sleepers if each.woken()]
        assert len(woken) == 2, "the second in case the first is frozen"
        assert first in {each.number for each in woken}
        chosen |= {each.number for each in woken}
        assert db.claim(f"somebody{i}", listener=0).ids == [f"t{i}"]
    assert len(chosen) > 2


def test_many_tasks_wake_a_few_and_those_wake_more(db: Db, hire: Hire) -> None:
    sleepers = [hire(f"w{i}") for i in range(12)]
    assert {each.claim() for each in sleepers} == {"empty"}
    db.enqueue(*(f"t{i:02}" for i in range(12)))
    waiting = list(sleepers)
    while woken := [each for each in waiting if each.woken()]:
        for each in woken:
            assert len(each.claim()) == 1
            waiting.remove(each)
    assert not waiting
    assert db.running() == 12


def test_who_has_no_free_slot_or_serves_another_type_sleeps_on(db: Db, hire: Hire) -> None:
    busy, other, free = hire("busy"), hire("other", ("video",)), hire("free")
    db.enqueue("first")
    assert busy.claim() == ["first"]
    assert other.claim() == free.claim() == "empty"
    db.enqueue("second")
    assert [busy.woken(), other.woken(), free.woken()] == [False, False, True]


def test_a_worker_with_a_slot_left_is_woken_for_it(db: Db, hire: Hire) -> None:
    worker = hire("w")
    db.enqueue("first")
    assert worker.claim(2) == ["first"]
    db.enqueue("second")
    assert worker.claim(1) == ["second"]
    db.enqueue("third")
    assert worker.woken() is False, "there was nobody to wake when the second came, and no slot for the third"


def test_the_end_of_its_session_is_the_end_of_its_idleness(db: Db, hire: Hire) -> None:
    dead, alive = hire("dead"), hire("alive")
    assert dead.claim() == alive.claim() == "empty"
    pid = dead.claims.value("SELECT pg_backend_pid()")
    dead.claims.close()
    until(lambda: not db.run("SELECT FROM pg_stat_activity WHERE pid = %s", pid), "the session is gone")
    db.enqueue("task")
    assert [dead.woken(), alive.woken()] == [False, True]
    dead.listener.close()
    until(lambda: not db.run("SELECT FROM pg_stat_activity WHERE pid = %s", dead.number), "the other one too")
    new = hire("new")
    assert {row["pid"] for row in db.run("SELECT pid FROM listeners")} == {alive.number, new.number}


def test_be_idle_with_null_lets_it_sleep(db: Db, hire: Hire) -> None:
    draining = hire("draining")
    assert draining.claim() == "empty"
    draining.claims.run("SELECT be_idle(NULL)")
    db.enqueue("task")
    assert draining.woken() is False


def test_a_worker_that_has_no_channel_of_its_own_has_all_told(db: Db, hire: Hire) -> None:
    alone = hire("alone")
    assert alone.claim() == "empty"
    with db.another() as listener:
        listener.run("LISTEN taskgate_ready")
        assert db.claim("plain").outcome == "empty"
        db.enqueue("task")
        (notice,) = listener.connection.notifies(timeout=30, stop_after=1)
        assert notice.channel == "taskgate_ready"


def test_a_worker_that_hears_nothing_asks_for_no_notification(db: Db) -> None:
    with db.another() as listener:
        listener.run("LISTEN taskgate_ready")
        assert db.claim("deaf", listener=0).outcome == "empty"
        db.enqueue("task")
        assert list(listener.connection.notifies(timeout=0.2)) == []
