"""Limits of groups: held exactly, passed over at no cost, and room is told to those who wait for it."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from tests.protocol.tools import Background, Db, until


def enqueue(db: Db, count: int, name: str, *, task_type: str = "llm", model: str = "", **options: object) -> None:
    request = json.dumps({"model": model} if model else {})
    db.enqueue(
        *(f"{name}{i:04}" for i in range(count)), task_type=task_type, request=request, options=json.dumps(options)
    )


def limit(db: Db, scope: str, name: str, value: int | None) -> None:
    db.run("SELECT set_limit(%s, %s, %s)", scope, name, value)


def kinds(ids: list[str]) -> Counter[str]:
    return Counter(task_id.rstrip("0123456789") for task_id in ids)


@pytest.fixture
def both() -> list[str]:
    return ["llm", "veo"]


@pytest.mark.parametrize(
    ("scope", "name", "options"),
    [
        ("type", "veo", {"task_type": "veo"}),
        ("model", "gpt", {"model": "gpt"}),
        ("upstream", "house", {"upstream": "house"}),
        ("tenant", "acme", {"tenant": "acme"}),
    ],
)
@pytest.mark.parametrize("star", [False, True])
def test_a_limit_of_each_kind(
    db: Db, both: list[str], scope: str, name: str, options: dict[str, str], star: bool
) -> None:
    db.set_limit(100)
    enqueue(db, 20, "in", **options)
    enqueue(db, 5, "out", priority=0)
    limit(db, scope, "*" if star else name, 3)
    if star and scope == "type":
        limit(db, "type", "llm", 50)
    first = db.claim("w", 10, types=both)
    assert kinds(first.ids) == {"in": 3, "out": 5}
    assert db.claim("v", 10, types=both).outcome == "limited"
    inside = [pair for pair in first.pairs if pair[0].startswith("in")]
    db.complete(inside[0])
    assert kinds(db.claim("v", 10, types=both).ids) == {"in": 1}
    limit(db, scope, name, 0)
    assert db.claim("u", 10, types=both).outcome == "limited"
    limit(db, scope, name, 6)
    assert kinds(db.claim("u", 10, types=both).ids) == {"in": 3}
    assert db.value("SELECT remove_limit(%s, %s)", scope, name) is True
    assert db.value("SELECT remove_limit(%s, %s)", scope, name) is False
    if star:
        assert db.claim("t", 10, types=both).outcome == "limited"
        db.run("SELECT remove_limit(%s, '*')", scope)
    assert kinds(db.claim("t", 90, types=both).ids) == {"in": 13}
    assert db.claim("s", 10, types=both).outcome == "empty"


def test_limits_that_cross(db: Db) -> None:
    """Each tenant 5, model a 4, model b 6, in one claim and in many."""
    db.set_limit(100)
    for tenant in ("x", "y", "z"):
        for model in ("a", "b", "c"):
            enqueue(db, 10, f"{tenant}{model}", model=model, tenant=tenant)
    limit(db, "tenant", "*", 5)
    limit(db, "model", "a", 4)
    limit(db, "model", "b", 6)
    ids = db.claim("w", 50).ids
    for i in range(5):
        ids += db.claim(f"v{i}", 3).ids
    by_tenant, by_model = Counter(i[0] for i in ids), Counter(i[1] for i in ids)
    assert by_tenant == {"x": 5, "y": 5, "z": 5}, "as much as may run, runs"
    assert by_model["a"] <= 4
    assert by_model["b"] <= 6


def test_an_empty_name_is_no_group(db: Db) -> None:
    enqueue(db, 5, "t")
    for scope in ("model", "upstream", "tenant"):
        limit(db, scope, "*", 1)
    assert len(db.claim("w", 5).rows) == 5


def test_zero_for_each_pauses_those_without_a_limit_of_their_own(db: Db) -> None:
    enqueue(db, 3, "a", tenant="a")
    enqueue(db, 3, "b", tenant="b")
    limit(db, "tenant", "*", 0)
    limit(db, "tenant", "b", 2)
    assert kinds(db.claim("w", 9).ids) == {"b": 2}


def test_sql_only_workers_are_counted_in_the_groups(db: Db) -> None:
    enqueue(db, 5, "t", model="m")
    limit(db, "model", "m", 3)
    db.run("UPDATE tasks SET status = 'running', locked_until = now() + interval '1 hour' WHERE task_id < 't0002'")
    assert len(db.claim("w", 5).rows) == 1


def test_what_is_not_a_limit_is_refused(db: Db) -> None:
    for statement in ("set_limit('color', 'red', 1)", "set_limit('type', 'llm', -1)", "set_limit('type', '', 1)"):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.run(f"SELECT {statement}")


def test_a_full_group_of_many_flows_is_passed_over(db: Db) -> None:
    """A thousand flows of a full model in front of one that may run."""
    db.run(
        "INSERT INTO tasks (task_id, status, task_type, request, tenant, model, priority)"
        " SELECT 't' || i, 'pending', 'llm', '{}', 'tenant' || i, 'full', 9 FROM generate_series(1, 1000) i"
    )
    enqueue(db, 3, "free", model="other")
    limit(db, "model", "full", 1)
    assert len(db.claim("w", 1).rows) == 1
    assert kinds(db.claim("v", 5).ids) == {"free": 3}
    assert db.claim("u", 5).outcome in ("limited", "unsure")


@pytest.fixture
def listener(db: Db) -> Iterator[Db]:
    with db.another() as listener:
        listener.run("LISTEN taskgate_ready")
        yield listener


def told(listener: Db) -> int:
    """How many notices have come; a round trip to the server fetches those that were sent before."""
    notices: list[object] = []
    listener.connection.add_notify_handler(notices.append)
    try:
        listener.run("SELECT 1")
        listener.run("SELECT 1")
    finally:
        listener.connection.remove_notify_handler(notices.append)
    return len(notices)


def test_room_that_its_worker_cannot_use_is_passed_on(db: Db, listener: Db, both: list[str]) -> None:
    db.set_limit(2)
    enqueue(db, 1, "l")
    enqueue(db, 5, "v", task_type="veo")
    (pair,) = db.claim("llm only", 1).pairs
    assert kinds(db.claim("both", 1, types=both).ids) == {"v": 1}
    assert db.claim("veo only", 1, types=["veo"]).outcome == "full"
    told(listener)
    db.complete(pair)
    assert told(listener) == 0, "whoever frees a slot claims next"
    assert db.claim("llm only", 1).outcome == "empty"
    assert told(listener) == 1
    for _ in range(3):
        assert db.claim("llm only", 1).outcome == "empty"
    assert told(listener) == 0, "once"
    assert db.claim("veo only", 1, types=["veo"]).outcome == "claimed"


def test_room_in_a_group_is_passed_on(db: Db, listener: Db) -> None:
    enqueue(db, 9, "m", model="m")
    enqueue(db, 9, "n", model="n", priority=9)
    limit(db, "model", "m", 1)
    limit(db, "model", "n", 1)
    assert kinds(db.claim("a", 2).ids) == {"m": 1, "n": 1}
    assert db.claim("b", 5).outcome == "limited"
    told(listener)
    pairs = [(row["task_id"], row["claim_token"]) for row in db.run("SELECT * FROM tasks WHERE status = 'running'")]
    db.complete(*pairs)
    assert kinds(db.claim("a", 1, [0]).ids) == {"n": 1}
    assert told(listener) == 1, "m has room, and a has no slot for it"
    assert kinds(db.claim("b", 5).ids) == {"m": 1}
    db.complete(
        *((row["task_id"], row["claim_token"]) for row in db.run("SELECT * FROM tasks WHERE status = 'running'"))
    )
    assert kinds(db.claim("b", 5).ids) == {"m": 1, "n": 1}
    assert told(listener) == 0, "nothing is left over that could run"


def test_without_waiters_nobody_is_told(db: Db, listener: Db) -> None:
    enqueue(db, 9, "t")
    pairs = db.claim("a", 2).pairs
    db.complete(*pairs)
    db.claim("a", 1)
    assert told(listener) == 0


def test_a_raised_limit_wakes(db: Db, listener: Db) -> None:
    for change in ("set_limit('tenant', 'x', 3)", "remove_limit('tenant', 'x')", "set_limit(5)"):
        db.run(f"SELECT {change}")
        until(lambda: told(listener) == 1, "a notice")


def test_a_hundred_thousand_do_not_hold_up_ten(db: Db) -> None:
    """Two tenants, 20 slots: the ten of the second start as the next ten slots come free."""
    db.set_limit(20)
    db.run(
        "INSERT INTO tasks (task_id, status, task_type, request, tenant)"
        " SELECT 'many' || i, 'pending', 'llm', '{}', 'many' FROM generate_series(1, 100000) i"
    )
    running = db.claim("w", 20).pairs
    enqueue(db, 10, "few", tenant="few")
    started = []
    for i in range(12):
        db.complete(running.pop(0))
        pairs = db.claim(f"w{i}", 1).pairs
        started += [task_id for task_id, _ in pairs]
        running += pairs
    assert kinds(started[:10]) == {"few": 10}
    assert kinds(started[10:]) == {"many": 2}


SAMPLE = """
    SELECT count(*) AS fleet, count(*) FILTER (WHERE model = 'a') AS a, count(*) FILTER (WHERE tenant = 'x') AS x,
           count(*) FILTER (WHERE tenant = 'y') AS y FROM tasks WHERE status = 'running'
"""
OWN_TIMES = """
    SELECT max(n) FROM (
        SELECT sum(step) OVER (ORDER BY at, step) AS n FROM (
            SELECT started_at AS at, 1 AS step FROM tasks WHERE {where}
            UNION ALL SELECT finished_at, -1 FROM tasks WHERE {where}
        ) AS steps
    ) AS counts
"""


def test_limits_hold_while_many_claim(db: Db) -> None:
    """Five claimers over connections of their own: every snapshot, and the rows' own times."""
    db.set_limit(7)
    for tenant in ("x", "y"):
        for model in ("a", "b", "c"):
            enqueue(db, 60, f"{tenant}{model}", model=model, tenant=tenant)
    limit(db, "model", "a", 2)
    limit(db, "tenant", "*", 4)
    over = threading.Event()

    def life(number: int) -> None:
        dice = random.Random(number)
        with Db(db.dsn) as mine:
            held: list[tuple[str, int]] = []
            while not over.is_set():
                if len(held) < 4:
                    held += mine.claim(f"w{number}", 4 - len(held), [token for _, token in held]).pairs
                while held and dice.random() < 0.6:
                    assert mine.complete(held.pop()) == ["done"]

    lives = [Background(partial(life, n)) for n in range(5)]
    samples: Counter[tuple[str, int]] = Counter()
    try:
        while db.value("SELECT count(*) FROM tasks WHERE status <> 'completed'"):
            (row,) = db.run(SAMPLE)
            samples.update(row.items())
    finally:
        over.set()
        for each in lives:
            each.result()
    most = {name: max(n for key, n in samples if key == name) for name in ("fleet", "a", "x", "y")}
    assert most["fleet"] <= 7
    assert most["a"] <= 2
    assert max(most["x"], most["y"]) <= 4
    by_rows = {"true": 7, "model = 'a'": 2, "tenant = 'x'": 4, "tenant = 'y'": 4}
    assert {where: db.value(OWN_TIMES.format(where=where)) for where in by_rows} == by_rows, "held, and made use of"
