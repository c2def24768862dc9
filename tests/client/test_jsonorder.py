"""keeps_order must agree with what jsonb really does to a value."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskgate.jsonorder import keeps_order

KEYS = st.text(
    st.sampled_from(["a", "b", "B", "_", "1", "é", "ß", "漢", "😀", "\u007f", "\ue000"]), min_size=0, max_size=4
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text("ab", max_size=2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


def in_order(value: Any) -> Any:
    """The value with each object as a list of pairs, so that a comparison sees the order."""
    if isinstance(value, dict):
        return [(key, in_order(inner)) for key, inner in value.items()]
    return [in_order(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def connection(postgres: Any) -> Any:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        yield connection


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_agrees_with_jsonb(connection: Any, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    stored = json.loads(connection.execute("SELECT %s::text::jsonb::text", (text,)).fetchone()[0])
    assert keeps_order(value) == (in_order(stored) == in_order(value))


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": 1, "b": 2, "aa": 3}, True),
        ({"aa": 1, "b": 2}, False),
        ({"b": 1, "a": 2}, False),
        ([{"x": {"b": 1, "a": 2}}], False),
        ({"x": ({"b": 1, "a": 2},)}, False),
        ({"z": 1, "é": 2}, True),  # é has two bytes
        ({"é": 1, "z": 2}, False),
        ({"\ue000": 1, "😀": 2}, True),  # three bytes, then four; UTF-16 would have it the other way round
        ({"\ud800": 1}, True),
        ("text", True),
        ({}, True),
    ],
)
def test_examples(value: Any, kept: bool) -> None:
    assert keeps_order(value) is kept


def test_depth_is_no_trouble() -> None:
    value: Any = {"b": 1, "a": 2}
    for _ in range(100_000):
        value = [value]
    assert keeps_order(value) is False
    while isinstance(value, list):  # unwound by hand: freeing it at once would recurse
        value = value[0]
