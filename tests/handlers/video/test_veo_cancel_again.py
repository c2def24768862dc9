"""A cancel that the provider does not take at once is tried again, here or by the next worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskgate.handlers.video import submit
from taskgate.handlers.video.accounts import account
from taskgate.handlers.video.handler import veo_handler
from taskgate.handlers.video.job import MISSING_SINCE
from taskgate.local.fake_provider import FakeProvider
from taskgate.task import EndedCancelled, Paid, Snooze, Task
from taskgate.testing import MemoryContext
from tests.handlers.slow_notes import SlowNotes, notes, stopped
from tests.handlers.video.asking import ask, settings, started
from tests.waiting import happens

FOR_EVER = 100_000
LEFT = {"name": "op-1", "api": "interactions", "model": "m", "submitted_at": "2026-01-01T00:00:00.000+00:00"}


async def followed(provider: FakeProvider) -> tuple[asyncio.Future[Any], MemoryContext]:
    """An attempt that follows its operation."""
    provider.script("cat", {"polls": FOR_EVER})
    running, context = started(settings(provider))
    await happens(lambda: provider.video.counts["polls"])
    return running, context


def cancel(running: asyncio.Future[Any], context: MemoryContext) -> None:
    context.reason = "cancelled"
    running.cancel()


async def given_back(running: asyncio.Future[Any], words: str) -> None:
    with pytest.raises(Snooze, match=words) as raised:
        await running
    assert (raised.value.code, raised.value.after) == ("released", submit.LEFT_SECONDS)


def own_account(provider: FakeProvider) -> Any:
    return account("interactions", None, settings(provider), lambda _: pytest.fail("no token is needed")).identity()


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 503, 504])
async def test_a_refusal_that_passes(provider: FakeProvider, status: int) -> None:
    running, context = await followed(provider)
    provider.video.cancel_refusals = [status]
    cancel(running, context)
    await stopped(running)
    assert notes(context) == ["intend", "open", "cancelled"]
    assert provider.video.operations["op-1"].cancelled
    assert provider.video.counts["cancels_refused"] == 1


@pytest.mark.parametrize("status", [400, 404, 501])
async def test_a_refusal_for_good(provider: FakeProvider, status: int) -> None:
    running, context = await followed(provider)
    provider.video.cancel_refusals = [status] * FOR_EVER
    cancel(running, context)
    await stopped(running)
    assert notes(context) == ["intend", "open"], "a retry follows it, and pays for no second one"
    assert provider.video.counts["cancels_refused"] == 1


@pytest.mark.parametrize(("status", "words"), [(503, "answered 503"), (0, "no answer in 0.6 s")])
async def test_what_stays_refused_is_left_to_the_next_worker(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    monkeypatch.setattr(submit, "CANCEL_SECONDS", 0.6)
    running, context = await followed(provider)
    provider.video.cancel_refusals = [status] * FOR_EVER
    cancel(running, context)
    await happens(lambda: provider.video.counts["cancels_refused"])
    running.cancel()  # a drain that comes to its end at the same time
    await given_back(running, words)
    assert notes(context) == ["intend", "open"]
    (_, identity), (_, saved) = context.paid
    paid = Paid(identity, {**saved, "cancel_requested": True})
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid})
    assert (outcome.status, outcome.error_code) == ("snoozed", "released"), "it is refused to the next one, too"
    assert outcome.paid == []
    provider.video.cancel_refusals.clear()
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid})
    assert (outcome.status, outcome.error_code) == ("failed", "cancelled")
    assert provider.video.operations["op-1"].cancelled
    assert provider.video.summary()["most_taken"] == 1


async def test_refused_right_after_the_submission(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "CANCEL_SECONDS", 0.3)
    provider.script("cat", {"polls": FOR_EVER})
    provider.video.cancel_refusals = [503] * FOR_EVER
    context = SlowNotes("operation")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    running: asyncio.Future[Any] = asyncio.ensure_future(veo_handler(settings(provider)).function(task))
    await context.begun.wait()
    context.stop(running, "cancelled")
    await asyncio.sleep(0)
    context.go_on.set()
    await given_back(running, "answered 503")
    assert notes(context) == ["intend", "open"]


@pytest.mark.parametrize("here", [True, False])
async def test_cancelled_before_it_is_followed(provider: FakeProvider, here: bool) -> None:
    context = SlowNotes("checkpoint")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    task.paid = Paid(own_account(provider) if here else {"key": "of somebody else"}, LEFT)
    task.checkpoint = {MISSING_SINCE: 1.0} if here else None
    running: asyncio.Future[Any] = asyncio.ensure_future(veo_handler(settings(provider)).function(task))
    await context.begun.wait()
    context.stop(running, "cancelled")
    await given_back(running, "before it was followed")
    assert provider.video.counts["polls"] == 0


class Ended(MemoryContext):
    """The task was cancelled and has ended while this worker was frozen in its send."""

    async def save_operation(self, operation: Any) -> None:
        await super().save_operation(operation)
        raise EndedCancelled("too late")


async def test_a_handle_that_comes_after_the_end_is_cancelled(provider: FakeProvider) -> None:
    provider.script("cat", {"polls": FOR_EVER})
    context = Ended(asyncio.get_running_loop(), "t")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    with pytest.raises(EndedCancelled):
        await veo_handler(settings(provider)).function(task)
    assert notes(context) == ["intend", "open", "cancelled"]
    assert provider.video.operations["op-1"].cancelled
