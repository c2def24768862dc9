"""A cancel of a video, at every moment: nothing that was paid for is lost, and the provider is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskgate.handlers.video import http
from taskgate.handlers.video.handler import veo_handler
from taskgate.local.fake_provider import FakeProvider
from taskgate.settings import Settings
from taskgate.task import Paid, Task
from taskgate.testing import MemoryContext
from tests.handlers.slow_notes import SlowNotes, notes, stopped
from tests.handlers.video.asking import ask, settings
from tests.waiting import happens


def start(provider: FakeProvider, context: MemoryContext, **more: Any) -> asyncio.Future[Any]:
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    running: asyncio.Future[Any] = asyncio.ensure_future(veo_handler(settings(provider, **more)).function(task))
    return running


async def test_while_the_operation_is_saved(provider: FakeProvider) -> None:
    provider.script("cat", {"polls": 10_000})
    context = SlowNotes("operation")
    running = start(provider, context)
    await context.begun.wait()
    context.stop(running, "cancelled")
    await asyncio.sleep(0)
    running.cancel()  # a drain that comes to its end at the same time
    assert not running.done()
    context.go_on.set()
    await stopped(running)
    assert notes(context) == ["intend", "open", "cancelled"]
    assert provider.video.operations["op-1"].cancelled
    assert provider.video.summary()["most_taken"] == 1
    assert provider.video.counts["polls"] == 0


async def test_in_the_middle_of_the_answer() -> None:
    """A provider of its own: the fake one answers in one piece."""
    asked: list[str] = []
    rest = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b" HTTP/")[0].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n")
        if len(asked) == 1:
            writer.write(b'{"id": ')
            await rest.wait()
            writer.write(b'"op1"}')
        else:
            writer.write(b'{"cancel": 1}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    context = SlowNotes("")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    seen = asyncio.Event()
    read = http.ProviderHttp._read

    async def reading(self: Any, response: Any) -> str:
        seen.set()
        return await read(self, response)

    handler = veo_handler(Settings(gemini_base_url=f"http://{host}:{port}", gemini_api_key="KEY"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.ProviderHttp, "_read", reading)
        running = asyncio.ensure_future(handler.function(task))
        await seen.wait()
        context.stop(running, "cancelled")
        await asyncio.sleep(0.05)  # nothing may happen now
        assert not running.done()
        rest.set()
        await stopped(running)
    server.close()
    assert asked == ["POST /v1/interactions", "POST /v1/interactions/op1/cancel"]
    assert notes(context) == ["intend", "open", "cancelled"]


async def test_before_the_answer_the_connection_is_closed(provider: FakeProvider) -> None:
    provider.script("cat", {"hang": "before"})
    context = SlowNotes("")
    running = start(provider, context)
    await happens(lambda: provider.journal.in_flight)
    context.stop(running, "cancelled")
    await stopped(running)
    await happens(lambda: provider.journal.closed_by_client)
    assert notes(context) == ["intend"]


async def test_while_a_refusal_is_noted(provider: FakeProvider) -> None:
    provider.script("cat", {"status": 503})
    context = SlowNotes("withdraw")
    running = start(provider, context)
    await context.begun.wait()
    context.stop(running, "cancelled")
    await asyncio.sleep(0)
    context.go_on.set()
    await stopped(running)
    assert notes(context) == ["intend", "withdraw"]


@pytest.mark.parametrize("reason", ["cancelled", "shutdown"])
async def test_while_the_intent_is_written(provider: FakeProvider, reason: str) -> None:
    context = SlowNotes("intend")
    running = start(provider, context)
    await context.begun.wait()
    context.stop(running, reason)
    await asyncio.sleep(0)
    context.go_on.set()
    await stopped(running)
    assert notes(context) == ["intend", "withdraw"], "nothing was sent"
    assert provider.journal.requests == 0


async def test_a_cancel_that_nobody_heard_is_passed_on(provider: FakeProvider) -> None:
    provider.script("cat", {"polls": 10_000})
    context = SlowNotes("")
    running = start(provider, context)
    await happens(lambda: provider.video.counts["polls"])
    context.stop(running, "shutdown")
    await stopped(running)
    polls = provider.video.counts["polls"]
    (_, identity), (_, saved) = context.paid
    left = Paid(identity, {**saved, "cancel_requested": True})
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": left})
    assert (outcome.status, outcome.error_code) == ("failed", "cancelled")
    assert outcome.paid == [("operation", {**saved, "closed": "cancelled"})]
    assert provider.video.operations["op-1"].cancelled
    assert provider.video.counts["polls"] == polls
    assert provider.video.summary()["most_taken"] == 1


async def test_another_account_leaves_it_to_whoever_has_it(provider: FakeProvider) -> None:
    left = {"name": "op-1", "api": "interactions", "model": "m", "submitted_at": "2026-01-01T00:00:00.000+00:00"}
    paid = Paid({"key": "of somebody else"}, {**left, "cancel_requested": True})
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid})
    assert (outcome.status, outcome.error_code) == ("snoozed", "account_not_here")
    assert outcome.paid == []
    assert provider.video.counts["cancels"] == 0


async def test_what_the_provider_does_not_cancel_stays_open(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.script("cat", {"polls": 10_000})
    context = SlowNotes("")
    running = start(provider, context)
    await happens(lambda: provider.video.counts["polls"])
    provider.video.operations.clear()  # it answers 404 from here on
    context.stop(running, "cancelled")
    await stopped(running)
    assert notes(context) == ["intend", "open"], "a retry follows it, and pays for no second one"


async def test_while_it_is_sent_again_for_its_sound(provider: FakeProvider) -> None:
    """The first operation is over: what is cancelled is the second."""
    provider.script("cat", {"filtered": "audio"}, {"polls": 10_000})
    context = SlowNotes("")
    running = start(provider, context, veo_audio_retries=1)
    await happens(lambda: "op-2" in provider.video.operations and provider.video.operations["op-2"].polls)
    context.stop(running, "cancelled")
    await stopped(running)
    assert [provider.video.operations[each].cancelled for each in ("op-1", "op-2")] == [False, True]
    assert notes(context) == ["intend", "open", "filtered", "intend", "open", "cancelled"]
    assert context.paid[-1][1]["name"] == "op-2"
