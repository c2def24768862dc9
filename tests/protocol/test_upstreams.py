"""Which upstream a task goes to: the database and the programs that ask beforehand say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, connect
from taskgate.task import PermanentError
from taskgate.upstreams import UpstreamDirectory

TABLE: list[dict[str, Any]] = [
    {"name": "a", "api": "openai", "models": ["gpt-*", "exact"]},
    {"name": "b", "api": "openai", "models": ["gpt-5*", "exac*"]},
    {"name": "c", "api": "openai", "models": ["*"]},
    {"name": "off", "api": "openai", "models": ["off-1"], "enabled": False},
    {"name": "v", "api": "vertex", "models": ["veo-*"], "project": "p"},
    {"name": "w", "api": "gemini", "models": ["veo-*", "gpt-*"]},
]
PICKS = [
    ("llm", "gpt-4", "a"),
    ("llm", "gpt-5-mini", "b"),
    ("llm", "exact", "a"),
    ("llm", "exact-2", "b"),
    ("llm", "other", "c"),
    ("llm", "off-1", "c"),
    ("llm", None, "c"),
    ("veo", "veo-3", "v"),
    ("veo", "gpt-4", "w"),
    ("veo", "gemini-omni", ""),
    ("veo", None, ""),
    ("mine", "veo-3", "v"),
]


@pytest.fixture
async def calls(database: str) -> Any:
    connection = await connect(Database(database), "test")
    found = Calls(connection)
    await found.apply_upstreams(json.dumps(TABLE))
    yield found
    await connection.close()


async def test_both_pick_the_same(calls: Calls) -> None:
    directory = UpstreamDirectory(calls.upstreams)
    await directory.refresh()
    for task_type, model, expected in PICKS:
        picked = await calls._db.fetchval("SELECT pick_upstream($1, $2)", task_type, model)
        found = directory.pick(task_type, model)
        assert (picked, found.name if found else "") == (expected, expected), (task_type, model)


async def test_limits_of_the_file_are_the_fleets(calls: Calls) -> None:
    async def limits() -> dict[str, int]:
        rows = await calls._db.fetch("SELECT name, max_concurrent FROM limits WHERE scope = 'upstream'")
        return {row["name"]: row["max_concurrent"] for row in rows}

    table = [{"name": "x", "api": "openai", "max_concurrent": 4}, {"name": "y", "api": "openai", "max_concurrent": 2}]
    await calls.apply_upstreams(json.dumps(table))
    assert await limits() == {"x": 4, "y": 2}
    await calls._db.execute("UPDATE limits SET max_concurrent = 9 WHERE name = 'x'")
    assert await calls.apply_upstreams(json.dumps(table)) == [("x", "changed"), ("y", "same")]
    assert await limits() == {"x": 4, "y": 2}, "the file is the truth"
    await calls._db.execute("DELETE FROM limits WHERE name = 'x'")
    assert await calls.apply_upstreams(json.dumps(table[:1])) == [("x", "changed"), ("y", "removed")]
    assert await limits() == {"x": 4}
    table[0]["max_concurrent"] = 5
    await calls.apply_upstreams(json.dumps(table[:1]))
    assert await limits() == {"x": 5}
    await calls.apply_upstreams(json.dumps([{"name": "x", "api": "openai"}]))
    assert await limits() == {}


async def test_a_claimed_task_says_where_it_goes(calls: Calls) -> None:
    tasks = [
        NewTask("by-model", "llm", '{"prompt": "p", "model": "gpt-4"}'),
        NewTask("by-name", "llm", '{"prompt": "p", "model": "gpt-4"}', options='{"upstream": "c"}'),
        NewTask("nowhere", "veo", '{"prompt": "p"}'),
    ]
    await calls.enqueue(tasks)
    answer = await calls.claim("w", 10, [], 60, ["llm", "veo"])
    assert {each.task_id: (each.upstream, each.model) for each in answer.tasks} == {
        "by-model": ("a", "gpt-4"),
        "by-name": ("c", "gpt-4"),
        "nowhere": ("", ""),
    }


async def test_a_claimed_task_says_what_was_paid(calls: Calls) -> None:
    await calls.enqueue([NewTask("t", "veo", '{"prompt": "p"}')])
    (first,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
    assert first.paid is None
    await calls.intend("t", first.token, '{"api": "vertex"}', retry=False)
    await calls.save_operation("t", first.token, '{"name": "op"}')
    (again,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks  # as if the answer had been lost
    paid = json.loads(again.paid or "null")
    assert (paid["account"], paid["operation"], paid["token"]) == ({"api": "vertex"}, {"name": "op"}, first.token)


async def test_a_new_upstream_is_found_at_once_and_an_unknown_one_is_named(calls: Calls) -> None:
    directory = UpstreamDirectory(calls.upstreams)
    assert (await directory.get("v")).project == "p"
    with pytest.raises(PermanentError, match="'nowhere'") as caught:
        await directory.get("nowhere")
    assert caught.value.code == "unknown_upstream"
