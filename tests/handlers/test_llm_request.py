"""The request of an `llm` task: both forms, and words for what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from taskgate.handlers.llm_request import LlmRequest, to_chat

ADAPTER: TypeAdapter[dict[str, Any]] = TypeAdapter(LlmRequest)
HELLO = [{"role": "user", "content": "hello"}]
DATA = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": "hi"},
        {"prompt": "hi", "images": ["https://a.test/b.png", DATA], "system": "be brief", "model": "m"},
        {"prompt": "hi", "images": [], "n": 2, "stream": False, "stop": ["a"], "unknown": {"z": 1, "a": None}},
        {"prompt": "hi", "messages": None, "stream": None},
        {"messages": HELLO, "temperature": 0.5},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": ""}]},
    ],
)
def test_accepted_unchanged(request_: dict[str, Any]) -> None:
    checked = ADAPTER.validate_python(request_)
    assert checked == request_
    assert list(checked) == list(request_)


@pytest.mark.parametrize(
    ("request_", "place", "words"),
    [
        ({}, (), "give either prompt or messages"),
        ({"prompt": None}, (), "give either prompt or messages"),
        ({"promt": "x"}, (), "messages; there is only promt; did you mean prompt by promt?"),
        ({"text": "x", "model": "m"}, (), "messages; there is only text, model"),
        ({"prompt": "a", "messages": HELLO}, ("prompt",), "not both"),
        ({"prompt": ""}, ("prompt",), "at least 1 character"),
        ({"prompt": " \n"}, ("prompt",), "more than blanks"),
        ({"prompt": 3}, ("prompt",), "valid string"),
        ({"prompt": "a", "system": ["b"]}, ("system",), "valid string"),
        ({"prompt": "a", "model": 4}, ("model",), "valid string"),
        ({"prompt": "a", "images": "https://a.test/b.png"}, ("images",), "valid list"),
        ({"prompt": "a", "images": [DATA, "b.png"]}, ("images", 1), "http or https URL"),
        ({"prompt": "a", "images": ["file:///etc/passwd"]}, ("images", 0), "http or https URL"),
        ({"prompt": "a", "images": ["data:text/html,x"]}, ("images", 0), "data:image/png;base64"),
        ({"prompt": "a", "images": [DATA] * 101}, ("images",), "at most 100"),
        ({"messages": HELLO, "images": [DATA]}, ("images",), "images goes with prompt"),
        ({"messages": HELLO, "system": "b"}, ("system",), "system goes with prompt"),
        ({"messages": []}, ("messages",), "at least 1"),
        ({"messages": "hello"}, ("messages",), "valid list"),
        ({"messages": ["hello"]}, ("messages", 0), "valid dictionary"),
        ({"messages": [*HELLO, {"content": "x"}]}, ("messages", 1, "role"), "required"),
        ({"messages": [{"role": "user", "content": 5}]}, ("messages", 0, "content"), "a string, or a list"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, ("messages", 0, "content"), "each an object"),
        ({"prompt": "a", "stream": True}, ("stream",), "not streamed: leave stream out"),
        ({"prompt": "a", "stream": "yes"}, ("stream",), "not streamed"),
        ({"prompt": "a", "n": 0}, ("n",), "greater than or equal to 1"),
        ({"prompt": "a", "n": "2"}, ("n",), "valid integer"),
    ],
)
def test_refused_with_the_place(request_: dict[str, Any], place: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ADAPTER.validate_python(request_)
    errors = caught.value.errors()
    assert [(each["loc"], words in each["msg"]) for each in errors] == [(place, True)]


def test_every_problem_is_told() -> None:
    with pytest.raises(ValidationError) as caught:
        ADAPTER.validate_python({"messages": [{"content": 1}], "system": "a", "stream": True})
    places = {each["loc"] for each in caught.value.errors()}
    assert places == {("system",), ("stream",), ("messages", 0, "role"), ("messages", 0, "content")}


def test_schema_agrees_with_the_check() -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    validator = jsonschema_rs.validator_for(ADAPTER.json_schema())
    assert validator.is_valid({"prompt": "a", "images": [DATA], "temperature": 1})
    assert validator.is_valid({"messages": HELLO, "anything": None})
    for wrong in [
        {},
        {"prompt": ""},
        {"prompt": " "},
        {"prompt": "a", "messages": HELLO},
        {"prompt": "a", "images": ["ftp://a/b"]},
        {"messages": HELLO, "images": [DATA]},
        {"messages": [{"content": "x"}]},
        {"prompt": "a", "stream": True},
        {"prompt": "a", "n": 0},
    ]:
        assert not validator.is_valid(wrong), wrong


def test_prompt_form_becomes_messages() -> None:
    request = {"prompt": "hi", "images": ["u1", "u2"], "system": "brief", "model": "m", "z": 1, "a": 2, "stream": None}
    messages, parameters = to_chat(request)
    assert messages == [
        {"role": "system", "content": "brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "u1"}},
                {"type": "image_url", "image_url": {"url": "u2"}},
            ],
        },
    ]
    assert list(parameters.items()) == [("z", 1), ("a", 2)]
    assert to_chat({"prompt": "hi"}) == ([{"role": "user", "content": "hi"}], {})
    assert to_chat({"messages": HELLO, "n": 2}) == (HELLO, {"n": 2})
