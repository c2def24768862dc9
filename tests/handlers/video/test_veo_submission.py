"""The `veo` handler submits: refused, of unknown fate, or stopped meanwhile. It pays once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskgate.local.fake_provider import FakeProvider
from taskgate.task import Paid
from tests.handlers.video.asking import api, ask, settings, started
from tests.waiting import happens


@pytest.mark.parametrize("how", [{"disconnect": "before"}, {"disconnect": "middle"}, {"malformed": True}, {"body": {}}])
async def test_a_submission_of_unknown_fate_is_not_repeated(
    provider: FakeProvider, wire: dict[str, Any], how: dict[str, Any]
) -> None:
    provider.script("cat", how)
    outcome = await ask(provider, {"prompt": "A cat"}, **wire)
    assert (outcome.status, outcome.error, outcome.error_code) == ("failed", "submit_ambiguous", "submit_ambiguous")
    assert outcome.error_info["submit"]["account"]["api"] == api(wire)
    assert provider.video.summary()["most_taken"] == 1
    assert [name for name, _ in outcome.paid] == ["intend"]


async def test_a_submission_without_an_answer_in_time(provider: FakeProvider) -> None:
    provider.script("cat", {"hang": True})
    outcome = await ask(provider, {"prompt": "A cat"}, veo_submit_seconds=0.3)
    assert (outcome.status, outcome.error) == ("failed", "submit_ambiguous")
    assert provider.journal.closed_by_client <= 1


async def test_repeated_where_the_operator_wants_it(provider: FakeProvider) -> None:
    provider.script("cat", {"disconnect": "before"})
    outcome = await ask(provider, {"prompt": "A cat"}, ambiguous_submit="retry")
    assert (outcome.status, outcome.error_code) == ("retry", "submit_unknown")
    assert [name for name, _ in outcome.paid] == ["intend"]
    resumed = Paid(outcome.paid[0][1])
    again = await ask(provider, {"prompt": "A cat"}, ambiguous_submit="retry", options={"paid": resumed})
    assert again.status == "completed"


async def test_an_open_intent_of_an_earlier_attempt(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": Paid({"api": "interactions"})})
    assert (outcome.status, outcome.error) == ("failed", "submit_ambiguous")
    assert provider.journal.requests == 0


@pytest.mark.parametrize(
    ("answer", "status", "code", "after"),
    [
        ({"status": 429, "retry_delay": "7s"}, "throttled", "throttled", 7),
        ({"status": 503}, "retry", "provider_unavailable", None),
        ({"status": 500}, "retry", "provider_error", None),
        ({"status": 401}, "failed", "provider_auth", None),
        ({"status": 400}, "failed", "provider_refused", None),
        ({"status": 400, "message": "This prompt violates our usage guidelines."}, "failed", "content_filtered", None),
        ({"status": 504}, "failed", "submit_ambiguous", None),
        ({"status": 502}, "failed", "submit_ambiguous", None),
        ({"status": 408}, "failed", "submit_ambiguous", None),
        ({"status": 499}, "failed", "submit_ambiguous", None),
        ({"status": 520}, "failed", "submit_ambiguous", None),
        ({"status": 524}, "failed", "submit_ambiguous", None),
        ({"status": 525}, "retry", "provider_error", None),
        ({"status": 404, "message": "models/x was never heard of."}, "failed", "model_not_found", None),
    ],
)
async def test_answers_that_refuse(
    provider: FakeProvider, wire: dict[str, Any], answer: dict[str, Any], status: str, code: str, after: float | None
) -> None:
    provider.script("cat", answer)
    outcome = await ask(provider, {"prompt": "A cat"}, **wire)
    assert (outcome.status, outcome.error_code, outcome.after) == (status, code, after), outcome
    withdrawn = [name for name, _ in outcome.paid] == ["intend", "withdraw"]
    assert withdrawn == (code != "submit_ambiguous")


async def test_nobody_listens(provider: FakeProvider) -> None:
    await provider.stop()
    outcome = await ask(provider, {"prompt": "A cat"})
    assert (outcome.status, outcome.error_code) == ("retry", "provider_unavailable")
    assert outcome.error_info["delivery"] == "none"
    assert [name for name, _ in outcome.paid] == ["intend", "withdraw"]


async def test_a_retired_model_is_named_with_its_replacement(provider: FakeProvider) -> None:
    old = "veo-3.1-generate-preview"
    provider.script("cat", {"status": 404, "message": f"models/{old} is no longer available."})
    outcome = await ask(provider, {"prompt": "A cat", "model": old})
    assert (outcome.status, outcome.error_code) == ("failed", "model_retired")
    assert "'gemini-omni-1.1-flash'" in (outcome.error or "")
    assert f'TASKGATE_MODEL_ALIASES="{old}=gemini-omni-1.1-flash"' in (outcome.error or "")
    aliases = f"{old}=gemini-omni-1.1-flash"
    aliased = await ask(provider, {"prompt": "A cat", "model": old}, model_aliases_text=aliases)
    assert (aliased.result["model"], aliased.result["api"]) == ("gemini-omni-1.1-flash", "interactions")


async def test_fields_that_the_wire_does_not_carry(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": "A cat", "negative_prompt": "rain", "seed": 1})
    assert (outcome.status, outcome.error_code) == ("failed", "unsupported_field")
    assert [each["pointer"] for each in outcome.error_info["errors"]] == ["/negative_prompt"]
    assert provider.journal.requests == 0


async def test_stopped_while_it_sends_the_handle_is_kept(provider: FakeProvider) -> None:
    """A deploy in the middle of a submission: the answer is waited for, so that the next worker resumes it."""
    provider.script("cat", {"latency": 0.5})
    running, context = started(settings(provider))
    await happens(lambda: provider.journal.in_flight)
    context.reason = "shutdown"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [name for name, _ in context.paid] == ["intend", "operation"]
