"""The fake provider's answers and faults, over plain sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import pytest

from taskgate.local.fake_provider import FakeProvider
from tests.local.raw_http import Client, chat, chat_body, control
from tests.waiting import happens


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as fake:
        yield fake


async def test_answer(provider: FakeProvider) -> None:
    reply = await chat(provider.url, "hello there", model="some-model", n=2)
    assert reply.status == 200
    assert reply.headers["x-request-id"] == "req_fake_1"
    assert reply.json["model"] == "some-model"
    assert [choice["finish_reason"] for choice in reply.json["choices"]] == ["stop", "stop"]
    assert reply.json["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    assert (await chat(provider.url, "hello")).json["model"] == "fake-echo"
    models = await control(provider.url, "GET", "/v1/models")
    assert [model["id"] for model in models["data"]] == ["fake-echo"]


async def test_structured_answer_follows_the_schemas_order(provider: FakeProvider) -> None:
    schema = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "array", "items": {}}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    reply = await chat(provider.url, "x", response_format=wanted)
    assert reply.text == '{"z": 1, "a": [null]}'


async def test_streaming(provider: FakeProvider) -> None:
    reply = await chat(provider.url, "a b", stream=True, stream_options={"include_usage": True})
    events = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert text.strip() == "Fake answer to: a b"
    assert chunks[-1]["usage"]["total_tokens"] == 7
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    reply = await chat(provider.url, "[[fault:no_finish_reason]]", stream=True)
    assert b'"finish_reason":"stop"' not in reply.body
    with pytest.raises(asyncio.IncompleteReadError):
        await chat(provider.url, "[[fault:disconnect]]", stream=True)
    assert (await chat(provider.url, "[[fault:429]]", stream=True)).status == 429


async def test_markers(provider: FakeProvider) -> None:
    prompt = "x [[fault:429 retry_after=2 times=2]]"
    replies = [await chat(provider.url, prompt) for _ in range(3)]
    assert [reply.status for reply in replies] == [429, 429, 200]
    assert replies[0].headers["retry-after"] == "2"
    assert replies[0].json["error"]["code"] == "rate_limit_exceeded"
    assert (await chat(provider.url, prompt + " another")).status == 429, "each prompt counts for itself"
    assert (await chat(provider.url, "[[fault:429 retry_after_ms=1500]]")).headers["retry-after-ms"] == "1500"
    headers = (await chat(provider.url, "[[fault:429 retry_date=90]]")).headers
    wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    assert wait.total_seconds() == 90
    details = (await chat(provider.url, "[[fault:429 retry_delay=3s]]")).json["error"]["details"]
    assert details[0]["retryDelay"] == "3s"
    reply = await chat(provider.url, "[[fault:nonsense]]")
    assert reply.status == 400
    assert "no fault is called 'nonsense'" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("insufficient_quota", 429, "insufficient_quota"),
        ("overloaded", 529, None),
        ("500", 500, None),
        ("503", 503, None),
        ("400", 400, None),
        ("401", 401, "invalid_api_key"),
        ("404", 404, "model_not_found"),
        ("content_filter_400", 400, "content_filter"),
    ],
)
async def test_errors(provider: FakeProvider, fault: str, status: int, code: str | None) -> None:
    reply = await chat(provider.url, f"[[fault:{fault}]]")
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    assert provider.journal.outcomes == {fault: 1}


async def test_odd_answers(provider: FakeProvider) -> None:
    reply = await chat(provider.url, "[[fault:content_filter]]")
    assert reply.json["choices"][0]["finish_reason"] == "content_filter"
    assert (await chat(provider.url, "[[fault:no_finish_reason]]")).json["choices"][0]["finish_reason"] is None
    assert (await chat(provider.url, "[[fault:no_choices]]")).json["choices"] == []
    with pytest.raises(json.JSONDecodeError):
        _ = (await chat(provider.url, "[[fault:malformed]]")).json
    assert (await chat(provider.url, "[[fault:html]]")).headers["content-type"] == "text/html"
    assert len((await chat(provider.url, "[[fault:huge bytes=3000000]]")).text) == 3_000_000


async def test_broken_and_slow_connections(provider: FakeProvider) -> None:
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await chat(provider.url, "[[fault:disconnect when=before]]")
    assert caught.value.partial == b""
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await chat(provider.url, "[[fault:disconnect]]")
    assert caught.value.partial.startswith(b'{"id":"chatcmpl-fake')
    for fault in ("slow_headers seconds=0.1", "slow_body seconds=0.1"):
        async with Client(provider.url) as client:
            client.send("POST", "/v1/chat/completions", chat_body(f"[[fault:{fault}]]"))
            assert await client.reader.readline() == b"HTTP/1.1 200 OK\r\n"
            assert provider.journal.in_flight == 1
            await client.reader.readuntil(b'"system_fingerprint":"fake"}')
            assert provider.journal.in_flight == 0
    assert provider.journal.closed_by_client == 0


@pytest.mark.parametrize("fault", ["fault:hang", "latency:600", "fault:slow_body seconds=600"])
async def test_a_close_by_the_client_is_seen(provider: FakeProvider, fault: str) -> None:
    async with Client(provider.url) as client:
        client.send("POST", "/v1/chat/completions", chat_body(f"[[{fault}]]"))
        await happens(lambda: provider.journal.in_flight == 1)
    await happens(lambda: provider.journal.in_flight == 0)
    assert provider.journal.stats()["outcomes"] == {"closed_by_client": 1}
    entry = provider.journal.log()[0]
    assert entry["closed_by_client"] is True
    assert entry["time_out"] >= entry["time_in"]


async def test_requests_on_one_connection_are_answered_in_turn(provider: FakeProvider) -> None:
    async with Client(provider.url) as client:
        for n in range(3):
            client.send("POST", "/v1/chat/completions", chat_body(f"[[latency:0.02]] {n}"))
        texts = [(await client.receive()).text for _ in range(3)]
    assert [text[-1] for text in texts] == ["0", "1", "2"]
    assert provider.journal.max_in_flight == 1


async def test_expect_continue_close_and_garbage(provider: FakeProvider) -> None:
    async with Client(provider.url) as client:
        head = "POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: "
        body = chat_body("x")
        client.writer.write(f"{head}{len(body)}\r\n\r\n".encode())
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await client.receive()).headers["connection"] == "close"
        assert await client.reader.read() == b""
    async with Client(provider.url) as client:
        client.writer.write(b"nonsense\r\n\r\n")
        assert (await client.reader.read()).startswith(b"HTTP/1.1 400")
    assert (await chat(provider.url, "still there")).status == 200
    assert (await control(provider.url, "GET", "/nowhere"))["error"]["code"] == "not_found"


async def test_a_deeply_nested_body_is_refused(provider: FakeProvider) -> None:
    async with Client(provider.url) as client:
        reply = await client.call("POST", "/v1/chat/completions", b'{"messages":' + b"[" * 200_000)
    assert reply.status == 400


async def test_a_thousand_at_once_are_counted_exactly(provider: FakeProvider) -> None:
    await control(provider.url, "PUT", "/scripts", {"HOLD": [{"fault": "hang", "times": 1000}]})
    clients = [Client(provider.url) for _ in range(1000)]
    for client in clients:
        await client.__aenter__()
        client.send("POST", "/v1/chat/completions", chat_body("HOLD"))
    await happens(lambda: provider.journal.in_flight == 1000, 120)
    for client in clients:
        client.writer.close()
    await happens(lambda: provider.journal.in_flight == 0, 120)
    stats = provider.journal.stats()
    assert (stats["requests"], stats["max_in_flight"], stats["closed_by_client"]) == (1000, 1000, 1000)


async def test_back_to_back_calls_never_count_twice(provider: FakeProvider) -> None:
    async def caller() -> None:
        async with Client(provider.url) as client:
            for n in range(50):
                await client.call("POST", "/v1/chat/completions", chat_body(str(n)))

    provider.chooser.latency = 0.001
    await asyncio.gather(*(caller() for _ in range(7)))
    assert (provider.journal.requests, provider.journal.max_in_flight) == (350, 7)
