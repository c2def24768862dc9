"""claim: the limit, the order, the lock, the lease and the lost answer."""

from __future__ import annotations

import time
from datetime import timedelta

import psycopg
import pytest

from taskgate.protocol.calls import INLINE_BYTES, Calls
from tests.protocol.tools import Background, Db, until, waits_for_lock


def test_two_claims_held_open_do_not_exceed_the_limit(db: Db) -> None:
    db.set_limit(3)
    db.enqueue(*(f"t{i}" for i in range(10)))
    with db.another() as second:
        pid = second.connection.info.backend_pid
        with db.connection.transaction():
            assert len(db.claim("a", 2).rows) == 2
            other = Background(lambda: second.claim("b", 5))
            with db.another() as watch:
                until(waits_for_lock(watch, pid), "the second claim waits for the lock")
        assert len(other.result().rows) == 1
    assert db.running() == 3


def test_a_claim_that_is_rolled_back_leaves_nothing_behind(db: Db) -> None:
    db.set_limit(2)
    db.enqueue("a", "b", "c")
    kept = db.claim("x", 1)
    with db.connection.transaction(force_rollback=True):
        assert db.claim("y", 1).ids == ["b"]
    db.no_sweep()
    again = db.claim("y", 2)
    assert again.ids == ["b"]
    assert again.tokens[0] > kept.tokens[0] + 1, "a token is never given out twice, not even one rolled back"
    assert db.claim("z", 1).outcome == "full"


def test_a_claim_that_waited_for_the_lock_has_its_full_lease(db: Db) -> None:
    db.enqueue("a")
    with db.another() as holder, db.another() as claimer:
        with holder.connection.transaction():
            holder.run("SELECT pg_advisory_xact_lock(lock_key())")
            started = db.value("SELECT clock_timestamp()")
            # the claim's own transaction is three seconds old before it can go on; it asks again when told `busy`
            claimer.connection.autocommit = False
            claimer.run("SELECT 1")
            waiting = Background(lambda: until(lambda: claimer.claim("w", 1, lease=2).rows, "claim"))
            until(lambda: db.value("SELECT clock_timestamp()") - started > timedelta(seconds=3), "three seconds")
        (row,) = waiting.result()
        left = claimer.value("SELECT locked_until - clock_timestamp() FROM tasks WHERE task_id = 'a'")
        age = claimer.value("SELECT clock_timestamp() - now()")
        claimer.connection.commit()
    assert age > timedelta(seconds=3)
    assert left > timedelta(seconds=0.5), "the lease counts from after the wait"
    assert row["task_id"] == "a"
    assert db.claim("other", 1).outcome == "empty", "it was not born overdue"


def test_busy_after_a_second(db: Db) -> None:
    db.enqueue("a")
    with db.another() as holder, holder.connection.transaction():
        holder.run("SELECT pg_advisory_xact_lock(lock_key())")
        db.run("SET lock_timeout = '7s'")
        before = time.monotonic()
        assert db.claim().outcome == "busy"
        assert time.monotonic() - before > 0.9
        assert db.value("SELECT current_setting('lock_timeout')") == "7s", "the caller's own setting is back"
        assert db.recover() == 0
    assert db.claim().ids == ["a"]
    assert db.value("SELECT current_setting('lock_timeout')") == "7s"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("call", ["claim('w', 1)", "recover()"])
def test_another_isolation_level_is_refused(db: Db, level: str, call: str) -> None:
    db.run(f"SET default_transaction_isolation = '{level.lower()}'")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="READ COMMITTED"):
        db.run(f"SELECT {call}")


@pytest.mark.parametrize("arguments", ["NULL, 1", "'w', NULL", "'w', -1", "'w', 1, '{}', NULL", "'w', 1, '{}', '0 s'"])
def test_arguments_that_would_break_the_limit_are_refused(db: Db, arguments: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        db.run(f"SELECT claim({arguments})")


def test_a_lost_answer_comes_again(db: Db) -> None:
    db.enqueue("a", "b", "c")
    held = db.claim("w", 1)
    lost = db.claim("w", 1, held.tokens)
    db.age(30)
    again = db.claim("w", 2, held.tokens)
    assert [(r["task_id"], r["token"], r["outcome"]) for r in again.rows] == [
        ("b", lost.tokens[0], "again"),
        ("c", again.tokens[1], "claimed"),
    ]
    left = db.value("SELECT locked_until - clock_timestamp() FROM tasks WHERE task_id = 'b'")
    assert left > timedelta(seconds=50), "with a fresh lease"
    assert db.task("b")["attempts"] == 1, "it is the same attempt"
    assert db.claim("w", 1, held.tokens + again.tokens).outcome == "empty"
    assert db.claim("other", 5).outcome == "empty", "nobody else gets them"


def test_a_lost_answer_comes_again_at_the_limit_and_by_the_ledger_alone(db: Db) -> None:
    db.set_limit(1)
    db.enqueue("a", "b")
    db.claim("w", 1)
    db.no_sweep()
    assert [(r["task_id"], r["outcome"]) for r in db.claim("w", 1, [0]).rows] == [("a", "again")]
    assert db.running() == 1


@pytest.mark.parametrize("slots", [0, 1])
def test_a_sweep_when_nothing_is_free(db: Db, slots: int) -> None:
    """At the limit, with no slot, and with a lost answer alone."""
    db.set_limit(1)
    db.enqueue("a", "b")
    db.claim("w", 1)
    for _ in range(8):
        db.sweep_next()
        assert db.claim("v", slots).outcome == "full"
        db.sweep_next()
        assert [(r["task_id"], r["outcome"]) for r in db.claim("w", 1).rows] == [("a", "again")]
    assert db.value("SELECT live FROM claim_ledger ORDER BY id DESC LIMIT 1") == [db.task("a")["claim_token"]]


def test_null_among_the_held_tokens_hides_no_lost_answer(db: Db) -> None:
    db.enqueue("a")
    db.claim("w", 1)
    rows = db.run("SELECT outcome FROM claim('w', 1, ARRAY[NULL, 5]::bigint[])")
    assert rows[0]["outcome"] == "again"
    assert db.run("SELECT outcome FROM claim('w', 1, NULL)")[0]["outcome"] == "again"


def test_priorities_then_order_of_arrival(db: Db) -> None:
    for name, priority in (("low", 0), ("first", 4), ("second", 4), ("high", 9), ("seven", 7)):
        db.enqueue(name, options=f'{{"priority": {priority}}}')
    assert db.claim("w", 2).ids == ["high", "seven"]
    assert db.claim("v", 9).ids == ["first", "second", "low"]


def test_rows_of_one_statement_keep_their_order(db: Db) -> None:
    ids = [f"t{i}" for i in (5, 3, 9, 1, 7)]
    db.enqueue(*ids)
    assert db.claim("w", 9).ids == ids


def test_due_retries_come_first_within_their_priority(db: Db) -> None:
    db.enqueue("retried", "waiting", options='{"priority": 4}')
    (pair,) = db.claim("w", 1).pairs
    assert db.fail(pair, retry=True, delay=30) == ["done"]
    db.enqueue("high", options='{"priority": 5}')
    assert db.claim("w", 1).ids == ["high"]
    db.age(31, "retried")
    assert db.claim("v", 1).ids == ["retried"]
    assert db.claim("u", 1).ids == ["waiting"]


def test_delayed_tasks_do_not_start_early_and_their_time_is_told(db: Db) -> None:
    db.enqueue("later", options='{"delay_seconds": 30}')
    answer = db.claim()
    assert answer.outcome == "empty"
    assert timedelta(seconds=20) < answer.next_due <= timedelta(seconds=30)
    db.age(31, "later")
    assert db.claim().ids == ["later"]


def test_a_task_that_could_not_start_in_time_expires(db: Db) -> None:
    db.enqueue("late", "timely", options='{"start_within_seconds": 20}')
    db.enqueue("delayed", options='{"delay_seconds": 10, "start_within_seconds": 15}')
    db.age(21, "late")
    assert db.claim("w", 5).ids == ["timely"], "an expired task does not start, nor does it hold up others"
    db.age(2)
    db.recover()
    late = db.task("late")
    assert (late["status"], late["error"], late["error_code"]) == ("failed", "expired", "expired")
    assert late["expires_at"] > late["finished_at"]
    db.age(11, "delayed")
    assert db.claim("v", 5).ids == ["delayed"], "its time to start counts from when it was due"


def test_a_task_that_started_in_time_expires_no_more(db: Db) -> None:
    db.enqueue("released", "lost", "retried", options='{"start_within_seconds": 20}')
    pairs = dict(db.claim("w", 3, lease=5).pairs)
    db.release(("released", pairs["released"]))
    db.fail(("retried", pairs["retried"]), retry=True, delay=1)
    db.age(40)
    db.recover()
    assert {db.status(each) for each in ("released", "lost", "retried")} == {"pending"}
    assert sorted(db.claim("v", 5).ids) == ["lost", "released", "retried"]


def test_only_the_types_asked_for(db: Db) -> None:
    db.run(
        "INSERT INTO tasks (task_id, status, task_type, request)"
        " SELECT 'veo' || i, 'pending', 'veo', '{}' FROM generate_series(1, 20000) i"
    )
    db.enqueue("mine")
    db.enqueue("unknown", task_type="nobody registered this")
    assert db.claim("w", 1, types=["llm"]).ids == ["mine"]
    assert db.claim("w", 1, types=["llm", "llm"], held=[0]).outcome == "claimed"  # `mine`, again
    assert len(db.claim("v", 3, types=None).ids) == 3, "every registered type"
    assert db.claim("u", 1, types=[]).outcome == "empty"
    assert db.status("unknown") == "pending"


def test_limit_zero_pauses_and_recovers_all_the_same(db: Db) -> None:
    db.enqueue("a", "b")
    db.claim("w", 1)
    db.set_limit(0)
    assert db.claim("v", 5).outcome == "full"
    db.age(120)
    assert db.recover() == 1
    assert db.status("a") == "pending"
    assert db.claim("v", 5).outcome == "full"
    db.set_limit(5)
    assert db.claim("v", 5).ids == ["a", "b"]


def test_the_limit_lowered_while_tasks_run(db: Db) -> None:
    db.enqueue(*(f"t{i}" for i in range(9)))
    first = db.claim("w", 4)
    db.set_limit(2)
    assert db.claim("v", 5).outcome == "full"
    db.complete(*first.pairs[:2])
    assert db.claim("v", 5).outcome == "full"
    db.complete(first.pairs[2])
    assert len(db.claim("v", 5).rows) == 1
    assert db.running() == 2


def test_a_row_that_somebody_holds_is_skipped_and_not_hidden(db: Db) -> None:
    db.enqueue("held", *(f"t{i:04}" for i in range(1200)))
    with db.another() as operator, operator.connection.transaction():
        operator.run("UPDATE tasks SET updated_at = now() WHERE task_id = 'held'")
        db.set_limit(5000)
        assert len(db.claim("w", 1100).rows) == 1100
    db.no_sweep()
    assert db.claim("v", 1).ids == ["held"], "the mark stays with what is still there"


def test_a_late_commit_far_below_the_mark_is_found_by_an_idle_worker_at_once(db: Db) -> None:
    db.set_limit(5000)
    with db.another() as slow, slow.connection.transaction():
        slow.enqueue("late")
        db.enqueue(*(f"t{i:04}" for i in range(1200)))
        assert len(db.claim("w", 600).rows) == 600
        assert len(db.claim("w2", 600).rows) == 600
        assert db.claim("v", 1).outcome in ("empty", "unsure")
    assert db.value("SELECT max(marks[1]) FROM claim_ledger") > db.task("late")["seq"] + 500, "it lies below the mark"
    assert db.claim("v", 1).ids == ["late"]


def test_a_late_commit_waits_for_the_next_sweep_at_most(db: Db) -> None:
    db.set_limit(5000)
    with db.another() as slow, slow.connection.transaction():
        slow.enqueue("late")
        db.enqueue(*(f"t{i:04}" for i in range(1300)))
        assert len(db.claim("w", 600).rows) == 600
        assert len(db.claim("w2", 600).rows) == 600
    db.no_sweep()
    assert db.claim("v", 1).ids == ["t1200"], "hidden while sweeping is dear and there is other work"
    db.sweep_next()
    assert db.claim("u", 1).ids == ["late"]


def test_a_clock_that_steps_back_does_not_stop_the_sweeps(db: Db) -> None:
    db.enqueue("a")
    db.claim("w", 1)
    db.run("UPDATE claim_ledger SET swept_at = clock_timestamp() + interval '1 day', live = '{}', max_token = 1e15")
    db.set_limit(1)
    db.enqueue("b")
    assert db.claim("v", 1).outcome == "full", "the sweep found what runs"


def test_a_claim_without_the_lock_is_counted_from_the_next_sweep_on(db: Db) -> None:
    db.set_limit(2)
    db.enqueue("a", "b", "c", "d")
    db.claim("w", 1)
    db.run("UPDATE tasks SET status = 'running', locked_until = now() + interval '1 minute' WHERE task_id = 'b'")
    assert db.claim("v", 5).outcome == "full", "its token is above every mark, so it even counts at once"


async def test_large_requests_come_after_the_lock_is_released(db: Db, database: str) -> None:
    import asyncpg

    large, small = '{"x": "%s"}' % ("ab1" * INLINE_BYTES), '{"x": 1}'
    db.enqueue("small", request=small)
    db.enqueue("large", request=large)
    db.enqueue("small2", request=small)
    rows = db.run("SELECT task_id, request FROM claim('direct', 3, '{}', '1 minute', NULL, %s)", INLINE_BYTES)
    assert [row["request"] is None for row in rows] == [False, True, True], "in order, until the sum is reached"
    db.age(120)
    db.recover()
    connection = await asyncpg.connect(database)
    try:
        answer = await Calls(connection).claim("calls", 3, [], 60, ["llm"])
    finally:
        await connection.close()
    assert {task.task_id: task.request for task in answer.tasks} == {"small": small, "large": large, "small2": small}
