"""What is stored is what was sent: the checked text against PostgreSQL's own reading, for any JSON."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskgate.api.bodies import Body, parse_object, split_array, without_key
from taskgate.api.problems import Problem

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=5)),
    max_leaves=20,
)
objects = st.dictionaries(text, values, max_size=6)
slow = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


def read(raw: str) -> Body:
    return parse_object(raw.encode())


@slow
@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_any_object_is_taken_as_it_is(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    sent = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    body = read(f" {sent}\n")
    assert body.value == value
    assert body.text == sent


@slow
@given(objects)
async def test_order_is_kept_exactly_where_jsonb_would_lose_it(
    connection: asyncpg.Connection[Any], value: dict[str, Any]
) -> None:
    body = read(json.dumps(value))
    stored = await connection.fetchval("SELECT $1::jsonb::text", body.text)
    lost = json.dumps(json.loads(stored)) != json.dumps(json.loads(body.text))
    if lost:
        assert body.keep_order
    if not body.keep_order:
        assert [list(each) for each in _dicts(json.loads(stored))] == [list(each) for each in _dicts(value)]


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value] + [each for item in value.values() for each in _dicts(item)]
    if isinstance(value, list):
        return [each for item in value for each in _dicts(item)]
    return []


pairs = st.recursive(
    st.one_of(st.integers(), st.text(':a\\"é', max_size=3)),
    lambda inner: st.lists(st.tuples(st.text(":ab", max_size=1), inner), max_size=4),
    max_leaves=12,
)


def _write(value: Any, escape: bool) -> str:
    if isinstance(value, list):
        return "{" + ",".join(f"{_write(key, escape)}:{_write(item, escape)}" for key, item in value) + "}"
    written = json.dumps(value)
    return written.replace(":", "\\u003a") if escape else written


@slow
@given(st.lists(st.tuples(st.text(":ab", max_size=1), pairs), max_size=4), st.booleans())
def test_a_key_that_stands_twice_is_always_found(items: list[tuple[str, Any]], escape: bool) -> None:
    sent = _write(items, escape)
    twice = False

    def look(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or len(dict(found)) != len(found)
        return dict(found)

    json.loads(sent, object_pairs_hook=look)
    if twice:
        with pytest.raises(Problem) as caught:
            read(sent)
        assert caught.value.code == "duplicate_key"
    else:
        read(sent)


@pytest.mark.timeout(120)  # to look at every pair would take many minutes
def test_many_keys_are_compared_in_one_pass() -> None:
    sent = "{" + ",".join(f'"k{number}":1' for number in range(300_000)) + ',"z":1,"z":2}'
    with pytest.raises(Problem) as caught:
        read(sent)
    assert (caught.value.code, caught.value.detail) == ("duplicate_key", "the key 'z' stands twice in one object")


@slow
@given(st.binary(max_size=30).map(lambda raw: b'{"a":' + raw + b"}"))
def test_whatever_is_sent_is_taken_or_refused(raw: bytes) -> None:
    refused: Problem | None = None
    try:
        body = parse_object(raw)
    except Problem as problem:
        refused = problem
    if refused is None:
        assert json.loads(raw) == body.value
    else:
        assert refused.status in (400, 422)
        assert json.loads(refused.body)["code"]


@pytest.mark.parametrize(
    ("sent", "keep"),
    [
        ('{"prompt":"x"}', False),
        ('{"model":"m","prompt":"x"}', False),
        ('{"prompt":"x","model":"m"}', True),
        ('{"bb":1,"é":2}', False),  # both two bytes long
        ('{"é":1,"bb":2}', True),
        ('{"a":{"reasoning":1,"answer":2}}', True),
        ('{"a":[{"b":1,"a":2}]}', True),
        ('{"t":0.7,"top":1.50}', False),
        ('{"t":1e2}', True),
        ('{"n":123456789012345678901234567890}', False),
    ],
)
def test_when_the_text_is_kept(sent: str, keep: bool) -> None:
    assert read(sent).keep_order is keep


def test_taking_out_a_key_leaves_the_rest_as_it_was() -> None:
    sent = '{ "b" : 1.50, "taskgate":{"x":1}, "a" : {"z": [1 , 2],"y":"\\u00e9"} , "\\u0062b":1e2}'
    assert without_key(sent, "taskgate") == '{"b":1.50,"a":{"z": [1 , 2],"y":"\\u00e9"},"bb":1e2}'


def test_items_of_an_array() -> None:
    assert [bytes(item) for item in split_array(b' [ {"a": 1} , "]", [2] ]\n')] == [b'{"a": 1}', b'"]"', b"[2]"]
