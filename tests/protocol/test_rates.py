"""Rates and cool-downs: counted at claim, under its lock; tokens settled by use, whatever became of a task."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from functools import partial

import pytest

from tests.protocol.tools import Background, Db, until

SLOW = 1e-6
"""A minute: a bucket that does not fill up while a test looks."""


def enqueue(
    db: Db, count: int, name: str = "t", *, request: dict[str, object] | None = None, **options: object
) -> None:
    db.enqueue(
        *(f"{name}{i:04}" for i in range(count)),
        request=json.dumps({"model": "m"} if request is None else request),
        options=json.dumps(options),
    )


def rate(db: Db, scope: str, name: str, requests: float | None, burst: float | None = None, **tokens: float) -> None:
    db.run(
        "SELECT set_rate(%s, %s, %s, %s, %s, %s, %s)",
        *(scope, name, requests, burst, tokens.get("tokens"), tokens.get("most"), tokens.get("default")),
    )


def left(db: Db, group: str, kind: str) -> float:
    """What the bucket holds by the ledger."""
    return float(
        db.value("SELECT buckets -> %s ->> %s FROM claim_ledger ORDER BY id DESC LIMIT 1", group, kind) or "inf"
    )


def refill(db: Db, seconds: float) -> None:
    """Lets so much time pass for the buckets."""
    db.run(
        "UPDATE claim_ledger SET buckets = (SELECT coalesce(jsonb_object_agg(k, v || jsonb_build_object('at',"
        " (v ->> 'at')::float8 - %s)), '{}') FROM jsonb_each(buckets) AS e (k, v))"
        " WHERE id = (SELECT max(id) FROM claim_ledger)",
        seconds,
    )


@pytest.mark.parametrize("scope", ["type", "model", "upstream", "tenant"])
@pytest.mark.parametrize("star", [False, True])
def test_a_rate_of_each_kind(db: Db, scope: str, star: bool) -> None:
    db.set_limit(100)
    enqueue(db, 50, tenant="acme", upstream="house")
    name = {"type": "llm", "model": "m", "upstream": "house", "tenant": "acme"}[scope]
    rate(db, scope, "*" if star else name, 60 * SLOW, 5)
    first = db.claim("w", 3)
    assert len(first.rows) == 3
    assert len(db.claim("v", 50).rows) == 2, "the burst"
    db.complete(*first.pairs)
    for _ in range(2):
        db.no_sweep()
        assert db.claim("v", 5, [0]).outcome in ("limited", "claimed")  # its own, again
        assert db.claim("u", 5).outcome == "limited", "an end gives nothing back"
    refill(db, 3 / SLOW)
    assert len(db.claim("t", 50).rows) == 3


def test_no_window_sees_more_than_burst_and_rate(db: Db) -> None:
    """Four claimers as fast as they can: every window of the rows' own times."""
    db.set_limit(10_000)
    enqueue(db, 400)
    rate(db, "model", "m", 6000, 20)
    done = False

    def life(number: int) -> None:
        with Db(db.dsn) as mine:
            i = 0
            while not done:
                i += 1
                pairs = mine.claim(f"w{number}.{i}", random.randint(1, 9)).pairs
                if pairs:
                    mine.complete(*pairs)

    lives = [Background(partial(life, n)) for n in range(4)]
    try:
        until(lambda: db.value("SELECT count(*) FROM tasks WHERE status <> 'completed'") == 0, "all are done")
    finally:
        done = True
        for each in lives:
            each.result()
    starts = [row["at"] for row in db.run("SELECT extract(epoch FROM started_at)::float8 AS at FROM tasks ORDER BY 1")]
    assert len(starts) == 400
    for i, begin in enumerate(starts):
        for j in range(i, len(starts)):
            assert j - i + 1 <= 20 + 100 * (starts[j] - begin) + 0.001
    assert starts[-1] - starts[0] >= 3.79


def test_the_time_of_the_next_one_is_told(db: Db) -> None:
    enqueue(db, 5)
    rate(db, "model", "m", 6, 1)
    assert len(db.claim("w", 5).rows) == 1
    answer = db.claim("v", 5)
    assert answer.outcome == "limited"
    assert timedelta(seconds=8) < answer.next_due <= timedelta(seconds=10)
    enqueue(db, 1, "later", request={}, delay_seconds=3)
    assert db.claim("v", 5).next_due <= timedelta(seconds=3), "whichever comes first"


def test_a_rate_leaves_other_groups_alone(db: Db) -> None:
    enqueue(db, 5, "m", priority=9)
    enqueue(db, 5, "other", request={})
    rate(db, "model", "m", 60 * SLOW, 1)
    assert [i[:5] for i in db.claim("w", 6).ids] == ["m0000", *["other"] * 5]


def test_a_claim_that_is_rolled_back_takes_nothing(db: Db) -> None:
    enqueue(db, 9, request={"model": "m", "max_tokens": 90})
    rate(db, "model", "m", 60 * SLOW, 3, tokens=60 * SLOW, most=1000)
    with db.connection.transaction(force_rollback=True):
        assert len(db.claim("w", 5).rows) == 3
    assert len(db.claim("w", 5).rows) == 3
    assert left(db, "model/m", "requests") < 0.1


def test_tokens_are_reserved_by_estimate_and_settled_by_use(db: Db) -> None:
    request = {"model": "m", "max_tokens": 90}
    estimate = db.value("SELECT token_estimate(%s::jsonb, 7)", json.dumps(request))
    assert estimate == 90 + (len(json.dumps(request)) + 3) // 4
    assert db.value("SELECT token_estimate('{}', 7)") == 8
    assert db.value("""SELECT token_estimate('{"max_tokens": "x", "max_output_tokens": 3}', 7)""") == 14
    enqueue(db, 20, request=request)
    rate(db, "model", "m", None, tokens=60 * SLOW, most=5 * estimate + 1)
    db.set_limit(100)
    first = db.claim("w", 20)
    assert len(first.rows) == 5
    db.complete(first.pairs[0], result='{"usage": {"total_tokens": 20}}')
    db.complete(first.pairs[1], result='{"usage": {"total_tokens": 150}}')
    db.complete(first.pairs[2], result='{"text": "it does not say"}')
    db.fail(first.pairs[3], retry=False)
    db.release(first.pairs[4], code="snoozed", delay=60)
    db.no_sweep()
    again = db.claim("v", 20)
    # 5e + 1, less 20, 150 and e, are 4e - 169: with e = 100 two calls, and what was failed and released is back
    assert len(again.rows) == int((4 * estimate - 169) // estimate)
    assert left(db, "model/m", "tokens") == pytest.approx(4 * estimate - 169 - len(again.rows) * estimate, abs=0.1)
    assert db.value("SELECT count(*) FROM token_reservations") == len(again.rows)


def test_a_request_larger_than_the_bucket_waits_for_a_full_one(db: Db) -> None:
    enqueue(db, 1, "small")
    enqueue(db, 1, "large", request={"model": "m", "max_tokens": 5000})
    enqueue(db, 1, "tiny")
    rate(db, "model", "m", None, tokens=60 * SLOW, most=100)
    assert db.claim("w", 9).ids == ["small0000"], "smaller ones do not overtake it"
    answer = db.claim("v", 9)
    assert answer.outcome == "limited"
    refill(db, 1000 / SLOW)
    assert db.claim("v", 9).ids == ["large0000"]


def test_more_used_than_there_was_is_a_debt(db: Db) -> None:
    enqueue(db, 3)
    rate(db, "model", "m", None, tokens=60 * SLOW, most=100)
    (pair,) = db.claim("w", 1).pairs
    db.complete(pair, result='{"usage": {"total_tokens": 1000}}')
    assert db.claim("v", 1).outcome == "limited"
    assert left(db, "model/m", "tokens") == pytest.approx(-900, abs=1)


def test_sums_of_the_buckets_after_random_ends(db: Db) -> None:
    """Tasks end in every way there is, workers die, claims are rolled back: nothing is lost or made up."""
    dice = random.Random(7)
    size = 1_000_000.0
    db.set_limit(1000)
    rate(db, "model", "m", None, tokens=60 * SLOW, most=size)
    rate(db, "tenant", "*", None, tokens=60 * SLOW, most=size)
    used: dict[str, float] = {"model/m": 0.0, "tenant/a": 0.0, "tenant/b": 0.0}
    for tenant in ("a", "b"):
        enqueue(db, 150, tenant, request={"model": "m", "max_tokens": 100}, tenant=tenant, max_attempts=50)
    step = 0
    while db.value("SELECT count(*) FROM tasks WHERE status IN ('pending', 'running')") and (step := step + 1) < 2000:
        if dice.random() < 0.1:
            with db.connection.transaction(force_rollback=True):
                db.claim(f"rolled{step}", 5)
            continue
        answer = db.claim(f"w{step}", dice.randint(1, 9))
        for row in answer.rows:
            pair = (row["task_id"], row["token"])
            end = dice.choice(["complete", "complete", "mute", "fail", "retry", "release", "dies", "cancel", "purged"])
            tokens = dice.randint(0, 300)
            if end == "complete":
                assert db.complete(pair, result=json.dumps({"usage": {"total_tokens": tokens}})) == ["done"]
            elif end == "mute":
                db.complete(pair)
                tokens = int(db.value("SELECT token_estimate(request, 0) FROM tasks WHERE task_id = %s", pair[0]))
            elif end == "fail":
                db.fail(pair)
            elif end == "retry":
                db.fail(pair, retry=True, delay=0)
            elif end == "release":
                db.release(pair)
            elif end == "dies":
                db.age(120, pair[0])
            elif end == "cancel":
                db.cancel(pair[0])
                db.complete(pair, result=json.dumps({"usage": {"total_tokens": tokens}}))
            elif end == "purged":
                db.fail(pair)
                db.run("DELETE FROM tasks WHERE task_id = %s", pair[0])
            if end in ("complete", "mute"):
                for group in ("model/m", f"tenant/{row['tenant']}"):
                    used[group] += tokens
        if dice.random() < 0.3:
            db.sweep_next()
    db.sweep_next()
    db.claim("last", 1)
    assert db.value("SELECT count(*) FROM token_reservations") == 0
    for group, sum_ in used.items():
        assert sum_ > 0
        assert left(db, group, "tokens") == pytest.approx(size - sum_, abs=1), group


def test_a_full_bucket_is_forgotten(db: Db) -> None:
    enqueue(db, 2)
    rate(db, "model", "m", 60, 5)
    db.claim("w", 1)
    assert left(db, "model/m", "requests") == pytest.approx(4, abs=0.1)
    refill(db, 60)
    db.sweep_next()
    db.recover()
    assert db.value("SELECT buckets FROM claim_ledger ORDER BY id DESC LIMIT 1") == {}
    db.run("SELECT remove_limit('model', 'm')")
    assert len(db.claim("v", 1).rows) == 1


def test_a_throttled_task_puts_its_upstream_on_a_cool_down(db: Db) -> None:
    enqueue(db, 3, "house", upstream="house")
    enqueue(db, 3, "other", upstream="other")
    first = db.claim("w", 2)
    (house,) = [pair for pair in first.pairs if pair[0].startswith("house")]
    db.release(house, delay=40, code="throttled")
    assert db.task(house[0])["attempts"] == 0
    answer = db.claim("v", 9)
    assert [i[:5] for i in answer.ids] == ["other", "other"]
    answer = db.claim("u", 9)
    assert answer.outcome == "limited"
    assert timedelta(seconds=35) < answer.next_due <= timedelta(seconds=40)
    db.age(41)
    assert len(db.claim("u", 9).rows) == 3


def test_the_latest_end_of_a_cool_down_counts(db: Db) -> None:
    db.enqueue(*"abcd")
    pairs = db.claim("w", 3).pairs
    db.release(pairs[0], delay=60, code="throttled")
    db.release(pairs[1], delay=10, code="throttled")
    db.release(pairs[2], delay=5, code="snoozed")
    db.enqueue("video", task_type="veo")
    db.age(20)
    assert db.claim("v", 9).outcome == "limited", "of its type, where there is no upstream"
    assert db.claim("v", 9, types=["veo"]).ids == ["video"]
    db.age(41)
    assert len(db.claim("u", 9).rows) == 4
    db.age(61)
    db.sweep_next()
    db.recover()
    assert db.value("SELECT count(*) FROM cooldowns") == 0


def test_release_waits_for_nobody_who_cools_the_same_group(db: Db) -> None:
    db.enqueue("a", "b")
    one, two = db.claim("w", 2).pairs
    with db.another() as other, other.connection.transaction():
        other.release(one, delay=5, code="throttled")
        assert db.release(two, delay=5, code="throttled") == ["done"]
