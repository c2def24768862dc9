"""The `llm` handler: what reaches the provider, and what becomes of its answers."""

from __future__ import annotations

import base64
import json

import pytest

from taskgate.local.fake_provider import FakeProvider
from tests.handlers.asking import ask, body_of
from tests.handlers.image_host import PNG

DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


async def test_prompt(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": "What is the capital of France?"})
    assert outcome.status == "completed", outcome
    assert outcome.result == {
        "text": "Fake answer to: What is the capital of France?",
        "message": {
            "role": "assistant",
            "content": "Fake answer to: What is the capital of France?",
            "refusal": None,
        },
        "finish_reason": "stop",
        "model": "fake-echo",
        "usage": {"prompt_tokens": 6, "completion_tokens": 9, "total_tokens": 15},
    }
    assert body_of(provider) == {
        "model": "fake-echo",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }


async def test_messages_and_any_parameter_reach_the_provider_unchanged(provider: FakeProvider) -> None:
    request = {
        "messages": [{"role": "user", "content": "hi", "name": "Zoë", "x_unknown": {"z": 1, "a": None}}],
        "model": "some-model",
        "temperature": 0.1,
        "timeout": 7,
        "extra_headers": {"authorization": "Bearer stolen"},
        "metadata": {"b": "1", "a": "2"},
        "max_completion_tokens": None,
        "x_big": 12345678901234567890,
    }
    outcome = await ask(provider, request, openai_api_key="the-key")
    assert outcome.status == "completed"
    assert outcome.result["model"] == "some-model"
    sent = body_of(provider)
    assert sent == request
    assert list(sent)[2:] == list(request)[2:], "in the caller's order"
    entry = provider.journal.log()[0]
    assert entry["headers"]["x-stainless-retry-count"] == "0"
    assert "stolen" not in str(entry["headers"])


async def test_property_order_reaches_the_provider_byte_for_byte(provider: FakeProvider) -> None:
    wanted = (
        '{"type":"json_schema","json_schema":{"name":"step","strict":true,"schema":{"type":"object",'
        '"properties":{"reasoning":{"type":"string"},"answer":{"type":"integer"},"b":{"type":"object",'
        '"properties":{"zz":{"type":"string"},"a":{"type":"number"}}}},"required":["reasoning","answer","b"]}}}'
    )
    tools = '[{"type":"function","function":{"name":"f","parameters":{"properties":{"y":{},"x":{}},"type":"object"}}}]'
    request = json.loads(f'{{"prompt":"1+1?","response_format":{wanted},"tools":{tools}}}')
    outcome = await ask(provider, request)
    sent = provider.journal.body(1) or b""
    assert wanted.encode() in sent
    assert tools.encode() in sent
    assert list(json.loads(outcome.result["text"])) == ["reasoning", "answer", "b"]


@pytest.mark.parametrize(
    ("fault", "status", "code", "after"),
    [
        ("429 retry_after=7", "throttled", "throttled", 7.0),
        ("429 retry_after_ms=1500 retry_after=9", "throttled", "throttled", 1.5),
        ("429 retry_date=30", "throttled", "throttled", 30.0),
        ("429 retry_delay=3.5s", "throttled", "throttled", 3.5),
        ("429 retry_after=99999", "throttled", "throttled", 3600.0),
        ("529 retry_after=2", "throttled", "throttled", 2.0),
        ("503 retry_after=2", "throttled", "throttled", 2.0),
        ("503", "retry", "provider_unavailable", None),
        ("500", "retry", "provider_error", None),
        ("html", "retry", "provider_unavailable", None),
        ("408", "retry", "provider_timeout", None),
        ("409", "retry", "provider_error", None),
        ("insufficient_quota", "failed", "insufficient_quota", None),
        ("400", "failed", "provider_refused", None),
        ("401", "failed", "provider_auth", None),
        ("403", "failed", "provider_auth", None),
        ("404", "failed", "provider_refused", None),
        ("413", "failed", "provider_refused", None),
        ("422", "failed", "provider_refused", None),
        ("content_filter", "failed", "content_filtered", None),
        ("content_filter_400", "failed", "content_filtered", None),
        ("no_finish_reason", "retry", "incomplete_answer", None),
        ("no_choices", "retry", "incomplete_answer", None),
        ("malformed", "retry", "incomplete_answer", None),
        ("disconnect", "retry", "provider_unavailable", None),
        ("disconnect when=before", "retry", "provider_unavailable", None),
        ("slow_headers seconds=0.1", "completed", None, None),
        ("slow_body seconds=0.1", "completed", None, None),
    ],
)
async def test_trouble(provider: FakeProvider, fault: str, status: str, code: str | None, after: float | None) -> None:
    outcome = await ask(provider, {"prompt": f"hi [[fault:{fault}]]"})
    assert (outcome.status, outcome.error_code) == (status, code)
    assert outcome.after == pytest.approx(after)
    assert provider.journal.requests == 1, "one call an attempt: the SDK must not retry"
    if status != "completed":
        assert outcome.error_info["provider"].keys() == {"status", "request_id", "message", "type", "code"}


async def test_the_providers_own_words_and_id_are_kept(provider: FakeProvider) -> None:
    provider.script(
        "K", {"status": 404, "message": "The model `gpt-9` does not exist", "error_code": "model_not_found"}
    )
    outcome = await ask(provider, {"prompt": "K"})
    assert outcome.error == "the provider answered 404 (model_not_found): The model `gpt-9` does not exist"
    assert outcome.error_info == {
        "provider": {
            "status": 404,
            "request_id": "req_fake_1",
            "message": "The model `gpt-9` does not exist",
            "type": "invalid_request_error",
            "code": "model_not_found",
        }
    }


async def test_no_key_and_no_image_in_an_error(provider: FakeProvider) -> None:
    words = f"key hunter2hunter2 is wrong, image {DATA}" + " and so on" * 1000
    provider.script("K", {"status": 401, "message": words})
    outcome = await ask(provider, {"prompt": "K"}, openai_api_key="hunter2hunter2")
    kept = f"{outcome.error} {outcome.error_info}"
    assert "hunter2" not in kept
    assert "base64" not in kept
    assert len(outcome.error_info["provider"]["message"]) == 2000


async def test_tool_calls_refusals_and_several_answers(provider: FakeProvider) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    provider.script("TOOLS", {"reply": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"})
    provider.script("NO", {"reply": {"content": None, "refusal": "I cannot."}})
    outcome = await ask(provider, {"prompt": "TOOLS"})
    assert outcome.result["message"]["tool_calls"] == calls
    assert (outcome.result["text"], outcome.result["finish_reason"]) == ("", "tool_calls")
    assert (await ask(provider, {"prompt": "NO"})).result["message"]["refusal"] == "I cannot."
    outcome = await ask(provider, {"prompt": "a", "n": 3})
    assert [each["text"] for each in outcome.result["choices"]] == ["Fake answer to: a"] * 3


async def test_raw_answer_by_setting(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": "a"}, llm_raw_response=True)
    assert outcome.result["raw"]["system_fingerprint"] == "fake"


async def test_a_huge_answer_is_given_up(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": "[[fault:huge bytes=8000000]]"}, max_result_bytes=100_000)
    assert (outcome.status, outcome.error_code) == ("failed", "answer_too_large")


async def test_a_request_that_does_not_fit_never_leaves(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": ""})
    assert (outcome.status, outcome.error_code) == ("failed", "invalid_request")
    assert outcome.error_info["errors"][0]["loc"] == ["prompt"]
    outcome = await ask(provider, {"prompt": "a\ud800"})
    assert (outcome.status, outcome.error_code) == ("failed", "invalid_request")
    assert provider.journal.requests == 0
