"""Flows: where a task stands in line, the directory of lines, and in which order claim serves them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.protocol.tools import Background, Db, until, waits_for_lock

DIRECTORY = "SELECT count(*) FROM flows"
INSERT = "INSERT INTO tasks (task_id, status, task_type, request, tenant)"


def enqueue(db: Db, count: int, name: str = "t", *, task_type: str = "llm", model: str = "", **options: object) -> None:
    request = json.dumps({"model": model} if model else {})
    db.enqueue(
        *(f"{name}{i:04}" for i in range(count)), task_type=task_type, request=request, options=json.dumps(options)
    )


def tenants(db: Db, ids: list[str]) -> Counter[str]:
    rows = db.run("SELECT tenant FROM tasks WHERE task_id = ANY (%s)", ids)
    return Counter(row["tenant"] for row in rows)


def settle(db: Db) -> None:
    """Everything that runs is completed."""
    rows = db.run("SELECT task_id, claim_token FROM tasks WHERE status = 'running'")
    if rows:
        db.complete(*((row["task_id"], row["claim_token"]) for row in rows))


def test_a_row_gets_its_model_upstream_and_flow(db: Db) -> None:
    db.run("INSERT INTO upstreams (name, api, models) VALUES ('house', 'openai', '{qwen*}')")
    db.enqueue("ours", request='{"model": "qwen-3"}')
    db.run(
        "INSERT INTO tasks (task_id, status, task_type, request) VALUES"
        " ('theirs', 'pending', 'llm', '{\"model\": \"qwen-3\"}'), ('none', 'pending', 'llm', '[1]'),"
        " ('odd', 'pending', 'llm', '{\"model\": 7}'), ('nothing', 'pending', NULL, NULL)"
    )
    db.enqueue("named", request='{"model": "qwen-3"}', options='{"upstream": "other"}')
    ours, theirs = db.task("ours"), db.task("theirs")
    assert (ours["model"], ours["upstream"], ours["flow"]) == ("qwen-3", "house", theirs["flow"])
    assert (theirs["model"], theirs["upstream"]) == ("qwen-3", "house")
    assert (db.task("named")["upstream"], db.task("odd")["model"]) == ("other", "")
    assert db.task("odd")["flow"] == db.task("none")["flow"]
    assert db.task("nothing")["flow"] is None
    (row,) = [row for row in db.claim("w", 9).rows if row["task_id"] == "theirs"]
    assert (row["model"], row["upstream"], row["paid"]) == ("qwen-3", "house", None)


def test_a_task_that_is_moved_stands_in_its_new_line(db: Db) -> None:
    db.enqueue("first", "moved")
    db.run("UPDATE tasks SET priority = 9, tenant = 'acme' WHERE task_id = 'moved'")
    assert db.claim("w", 2).ids == ["moved", "first"]
    db.run("UPDATE tasks SET task_type = 'veo' WHERE task_id = 'first'")
    assert db.task("first")["status"] == "running"
    db.release(("first", db.task("first")["claim_token"]))
    assert db.claim("v", 1).outcome == "empty"
    assert db.claim("v", 1, types=["veo"]).ids == ["first"]


def test_names_do_not_run_into_each_other(db: Db) -> None:
    flows = db.run(
        "SELECT DISTINCT flow_id('llm', 4, t, u, m) FROM (VALUES ('a', 'b', 'c'), ('ab', '', 'c'), ('', 'ab', 'c'),"
        " ('', 'a', 'bc'), ('', '', 'abc'), ('abc', '', ''), ('a\\\\', 'b', 'c'), ('a', '\\\\b', 'c')) AS v (t, u, m)"
    )
    assert len(flows) == 8
    assert db.value("SELECT flow_id(NULL, 4, '', '', '') IS NULL")


def test_the_directory_is_tidied(db: Db) -> None:
    enqueue(db, 2, "a", tenant="a")
    enqueue(db, 2, "b", tenant="b")
    db.run("INSERT INTO flows SELECT * FROM flows WHERE tenant = 'b'")
    assert len(db.claim("w", 2).rows) == 2
    assert len(db.claim("w2", 2).rows) == 2
    db.sweep_next()
    db.recover()
    assert db.value(DIRECTORY) == 2, "doubles go, an entry stays for a minute"
    db.run("UPDATE flows SET since = since - interval '2 minutes'")
    db.sweep_next()
    db.recover()
    assert db.value(DIRECTORY) == 0
    rows = db.run("SELECT task_id, claim_token FROM tasks WHERE tenant = 'a'")
    assert db.release(*((row["task_id"], row["claim_token"]) for row in rows)) == ["done"] * 2
    assert db.value(DIRECTORY) == 1, "what goes back to the queue is entered anew"
    assert len(db.claim("v", 4).rows) == 2


def test_an_entry_is_not_deleted_under_a_writer_that_relies_on_it(db: Db) -> None:
    """The two orders of a writer and a sweep, held open in the middle."""
    enqueue(db, 1, "old")
    assert len(db.claim("w", 1).rows) == 1
    db.run("UPDATE flows SET since = since - interval '2 minutes'")
    with db.another() as writer, db.another() as watch:
        pid = writer.connection.info.backend_pid
        # The writer first: it has found the entry, and its task is not committed. The sweep leaves the entry alone.
        with writer.connection.transaction():
            writer.enqueue("new1")
            db.sweep_next()
            db.recover()
            assert db.value(DIRECTORY) == 1
        assert db.claim("w2", 1).ids == ["new1"]
        # The sweep first: the entry is deleted, not yet committed. The writer waits, and then enters it anew.
        settle(db)
        db.sweep_next()
        with db.connection.transaction():
            db.recover()
            assert db.value(DIRECTORY) == 0
            late = Background(lambda: writer.enqueue("new2"))
            until(waits_for_lock(watch, pid), "the writer waits for the sweep")
        assert late.result() == ["done"]
        assert db.value(DIRECTORY) == 1
        assert db.claim("v", 1).ids == ["new2"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_writer_with_an_old_snapshot(db: Db, level: str) -> None:
    enqueue(db, 1, "old")
    with db.another() as writer, writer.connection.transaction():
        writer.run(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert writer.value(DIRECTORY) == 1
        db.claim("w", 1)
        settle(db)
        db.run("DELETE FROM flows")
        writer.run("INSERT INTO tasks (task_id, status, task_type, request) VALUES ('new', 'pending', 'llm', '{}')")
    assert db.claim("v", 1).ids == ["new"]


def test_a_missing_entry_is_found_by_a_sweep(db: Db) -> None:
    enqueue(db, 1, "a")
    enqueue(db, 1, "b", delay_seconds=30, tenant="b")
    db.run("DELETE FROM flows")
    db.recover()
    db.run("DELETE FROM flows")
    db.age(31)
    db.no_sweep()
    assert db.claim("w", 2).outcome == "empty"
    db.sweep_next()
    assert len(db.claim("w", 2).rows) == 2


def test_an_insert_of_many_rows_enters_each_flow_once(db: Db) -> None:
    with db.connection.transaction():
        db.run(
            "INSERT INTO tasks (task_id, status, task_type, request, tenant)"
            " SELECT i, 'pending', 'llm', '{}', 'tenant' || i %% 7 FROM generate_series(1, 200) i"
        )
        with db.connection.transaction(force_rollback=True):
            db.run(f"{INSERT} VALUES ('x', 'pending', 'llm', '{{}}', 'x')")
        db.run(f"{INSERT} VALUES ('x', 'pending', 'llm', '{{}}', 'x')")
    assert db.value(DIRECTORY) == 8, "what was rolled back is entered again"
    db.set_limit(1000)
    assert len(db.claim("w", 500).rows) == 201


def test_tenants_share_evenly_whatever_they_posted(db: Db) -> None:
    db.set_limit(100)
    enqueue(db, 500, "many", tenant="many")
    enqueue(db, 10, "few", tenant="few")
    enqueue(db, 30, "some", tenant="some")
    assert tenants(db, db.claim("w", 9).ids) == {"many": 3, "few": 3, "some": 3}
    assert tenants(db, db.claim("v", 6).ids) == {"many": 2, "few": 2, "some": 2}
    assert tenants(db, db.claim("u", 45).ids) == {"many": 20, "few": 5, "some": 20}
    # who has finished gets what the others have too much: water finds its level
    settle(db)
    enqueue(db, 50, "more", tenant="few")
    first = db.claim("a", 20)
    db.complete(*(pair for pair in first.pairs if db.task(pair[0])["tenant"] == "many"))
    assert tenants(db, db.claim("b", 10).ids)["many"] >= 6


def test_one_at_a_time_goes_round(db: Db) -> None:
    for tenant in ("a", "b", "c"):
        enqueue(db, 5, tenant, tenant=tenant)
    order = []
    for i in range(9):
        (task_id,) = db.claim(f"w{i}", 1).ids
        order.append(task_id[0])
        settle(db)
    assert all(set(order[i : i + 3]) == {"a", "b", "c"} for i in range(0, 9, 3)), order


def test_the_flows_of_a_tenant_take_turns(db: Db) -> None:
    for model in ("x", "y", "z"):
        enqueue(db, 40, model, model=model)
    enqueue(db, 40, "veo", task_type="veo")
    db.set_limit(100)
    kinds = Counter(task_id[0] for task_id in db.claim("w", 20, types=["llm", "veo"]).ids)
    assert kinds == {"x": 5, "y": 5, "z": 5, "v": 5}
    singles = [db.claim(f"v{i}", 1, types=["llm", "veo"]).ids[0][0] for i in range(8)]
    assert set(singles[:4]) == set(singles[4:]) == {"x", "y", "z", "v"}
    assert len(db.claim("u", 100, types=["llm", "veo"]).rows) == 72
    assert len(set(db.claim("u", 100, types=["llm", "veo"]).ids)) == 72, "again, each once"


def test_priorities_go_before_fairness(db: Db) -> None:
    db.set_limit(100)
    enqueue(db, 30, "urgent", tenant="a", priority=9)
    enqueue(db, 30, "calm", tenant="b")
    assert tenants(db, db.claim("w", 20).ids) == {"a": 20}
    assert tenants(db, db.claim("v", 20).ids) == {"a": 10, "b": 10}


def test_waiting_raises_a_priority_step_by_step(db: Db) -> None:
    enqueue(db, 3, "low", priority=2)
    enqueue(db, 3, "high", priority=4)
    waited = "UPDATE tasks SET created_at = clock_timestamp() - %s * interval '1 minute' WHERE task_id LIKE 'low%%'"
    db.run(waited, 6)
    db.sweep_next()
    assert db.claim("w", 1).ids == ["high0000"], "six minutes are one level"
    db.run(waited, 16)
    db.sweep_next()
    assert db.claim("v", 1).ids == ["low0000"], "sixteen are three"
    assert db.claim("u", 1).ids == ["high0001"], "it had its turn; the next sweep looks again"
    db.sweep_next()
    assert db.claim("t", 1).ids == ["low0001"]
    db.run("UPDATE settings SET ageing = '0'")
    db.sweep_next()
    assert db.claim("s", 1).ids == ["high0002"], "ageing can be turned off"


def test_a_large_directory_is_served_a_window_at_a_time(db: Db) -> None:
    db.set_limit(5000)
    db.run(
        "INSERT INTO tasks (task_id, status, task_type, request, tenant, priority)"
        " SELECT 't' || i, 'pending', 'llm', '{}', 'tenant' || i, CASE WHEN i > 1990 THEN 9 ELSE 4 END"
        " FROM generate_series(1, 2000) i"
    )
    first = db.claim("w", 10).ids
    assert {int(task_id[1:]) for task_id in first} == set(range(1991, 2001)), "the highest priorities"
    taken = len(first)
    for i in range(60):
        taken += len(db.claim(f"w{i}", 100).rows)
        db.sweep_next()
    assert taken == 2000, "nobody is left behind"
    for _ in range(40):
        db.run("UPDATE flows SET since = since - interval '2 minutes'")
        db.sweep_next()
        db.recover()
    assert db.value(DIRECTORY) < 257


def test_many_tasks_of_many_flows_in_one_claim(db: Db) -> None:
    db.set_limit(5000)
    for tenant in range(20):
        for model in range(5):
            enqueue(db, 1 + tenant, f"t{tenant}m{model}-", model=f"m{model}", tenant=f"t{tenant}")
    total = 5 * sum(range(1, 21))
    got = db.claim("w", 2000)
    assert len(set(got.ids)) == total == len(got.ids)
    assert db.running() == total


@pytest.mark.parametrize("count", [20, 90, 300])
def test_flows_that_have_run_dry_take_nobody_s_place(db: Db, count: int) -> None:
    db.set_limit(1000)
    names = [f"dry{i}" for i in range(count)]
    db.run(
        "INSERT INTO tasks (task_id, status, task_type, request, tenant)"
        " SELECT n, 'pending', 'llm', '{}', n FROM unnest(%s::text[]) AS n",
        names,
    )
    while db.claim("w", 100).rows:
        settle(db)
    enqueue(db, 30, "big", tenant="big")
    held = db.claim("w", 10).tokens
    assert len(held) == 10
    assert db.value(f"{DIRECTORY} WHERE tenant LIKE 'dry%%'") == count, "as long as they are fresh"
    for _ in range(10):  # one slot comes free at a time, and the dry ones run less than any other
        db.no_sweep()
        answer = db.claim("w", 1, held)
        assert tenants(db, answer.ids) == {"big": 1}
        held += answer.tokens


def test_run_it_now_keeps_what_was_paid(db: Db) -> None:
    db.enqueue("video", options='{"delay_seconds": 3600}')
    db.run("UPDATE tasks SET run_at = NULL WHERE task_id = 'video'")
    (pair,) = db.claim().pairs
    db.run("SELECT intend(%s, %s, '{}', false)", *pair)
    db.run('SELECT save_operation(%s, %s, \'{"name": "op"}\')', *pair)
    db.release(pair, delay=3600)
    assert db.claim("v").outcome == "empty"
    db.run("UPDATE tasks SET run_at = NULL WHERE task_id = 'video'")
    (row,) = db.claim("v").rows
    assert row["paid"]["operation"] == {"name": "op"}
