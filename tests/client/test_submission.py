"""What is refused before anything is sent, and how many bodies become chunks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from taskgate.submission import Body, Options, body_of, chunks, json_text, many_chunks


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [1, "x\0y"]}, "/a/1: contains a NUL"),
        ({"a\0": 1}, "a key of the request: contains a NUL"),
        ({"a": "\ud83d"}, "/a: contains a lone surrogate"),
        ({"a": {"\udc00": 1}}, "a key of /a: contains a lone surrogate"),
        ({"a": float("nan")}, "/a: nan is no JSON number"),
        ({"a": float("-inf")}, "/a: -inf is no JSON number"),
        ({"a": {1: 2}}, "/a: the key 1 is no string"),
        ({"a/b~c": b"bytes"}, "/a~1b~0c: bytes is no JSON value"),
        ({"a": {1, 2}}, "/a: set is no JSON value"),
        (nested(101), "nested deeper than 100 levels"),
    ],
)
def test_what_cannot_be_kept_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + complaint.replace("/", "[/]")):
        json_text(value)


def test_text_keeps_order_and_characters() -> None:
    value = {"zz": 1, "a": [1.5, True, None, "漢😀"], "m": MappingProxyType({"y": 1, "x": (1, 2)})}
    assert json_text(value) == '{"zz":1,"a":[1.5,true,null,"漢😀"],"m":{"y":1,"x":[1,2]}}'
    json_text(nested(99))


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": True},
        {"priority": 1.5},
        {"max_attempts": 0},
        {"delay_seconds": -1},
        {"delay_seconds": float("nan")},
        {"timeout_seconds": 0},
        {"task_id": "with space"},
        {"task_id": ""},
        {"task_id": "x" * 201},
        {"run_at": datetime(2030, 1, 1)},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_seconds": 1},
        {"metadata": [1]},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
    ],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options(**wrong).given()


def test_options_go_over_those_in_the_request() -> None:
    request = {"prompt": "p", "taskgate": {"priority": 1, "task_id": "mine"}}
    body = body_of(request, Options(priority=7, idempotency_key="k"))
    assert json.loads(body.text)["taskgate"] == {"priority": 7, "task_id": "mine", "idempotency_key": "k"}
    assert (body.task_id, body.has_key) == ("mine", True)
    assert request["taskgate"] == {"priority": 1, "task_id": "mine"}  # the caller's own is left alone
    assert body_of("hello", Options()) == Body('{"prompt":"hello"}', None, has_key=False)


def test_chunks_by_number_and_by_size() -> None:
    requests = [{"prompt": "x" * 10} for _ in range(7)]
    assert [(c.first, len(c.lines)) for c in chunks(requests, Options(), most=3, most_bytes=10_000)] == [
        (0, 3),
        (3, 3),
        (6, 1),
    ]
    line = len(json_text(requests[0])) + 1
    assert [len(c.lines) for c in chunks(requests, Options(), most=100, most_bytes=line * 2)] == [2, 2, 2, 1]
    assert [len(c.lines) for c in chunks(requests, Options(), most=100, most_bytes=1)] == [1] * 7
    assert list(chunks([], Options(), most=3, most_bytes=10)) == []


def test_many_name_the_item_and_share_no_id() -> None:
    with pytest.raises(ValueError, match="item 1: /prompt: contains a NUL"):
        list(many_chunks(["fine", "b\0d"], {}, 10))
    with pytest.raises(ValueError, match="cannot share a task_id"):
        list(many_chunks(["fine"], {"task_id": "x"}, 10))
    with pytest.raises(ValueError, match="cannot share an idempotency_key"):
        list(many_chunks(["fine"], {"idempotency_key": "x"}, 10))
