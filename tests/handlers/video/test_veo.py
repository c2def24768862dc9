"""The `veo` handler against a fake provider, over all three wires."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.handlers.upstream_keys import key_digest
from taskgate.handlers.video.accounts import account
from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.local.fake_provider.operations import mp4
from taskgate.task import Paid, Upstream
from tests.handlers.asking import until
from tests.handlers.video.asking import ask, service_account, settings

WIRES: dict[str, dict[str, Any]] = {
    "gemini": {"veo_api": "gemini", "veo_model": "veo-of-a-relay"},
    "vertex": {"veo_api": "vertex", "google_project": "p"},
    "interactions": {},
}


@pytest.fixture(params=list(WIRES))
def wire(request: pytest.FixtureRequest, provider: FakeProvider, tmp_path: Path) -> dict[str, Any]:
    """Settings for one wire; Vertex with a service account."""
    return of_wire(request.param, provider, tmp_path)


def of_wire(name: str, provider: FakeProvider, folder: Path) -> dict[str, Any]:
    if name != "vertex":
        return WIRES[name]
    credentials = str(service_account(folder, provider))
    return {**WIRES[name], "vertex_base_url": provider.url, "google_credentials": credentials}


def api(wire: dict[str, Any]) -> str:
    return str(wire.get("veo_api", "interactions"))


async def test_a_video_is_made_followed_and_stored(provider: FakeProvider, wire: dict[str, Any]) -> None:
    provider.script("cat", {"polls": 2})
    outcome = await ask(provider, {"prompt": "A cat", "duration_seconds": 8}, **wire)
    assert outcome.status == "completed", outcome
    operation = provider.video.operations["op-1"]
    content = mp4(operation)
    (video,) = outcome.result["videos"]
    assert video["sha256"] == hashlib.sha256(content).hexdigest()
    assert (video["bytes"], video["mime"], video["url"]) == (
        len(content),
        "video/mp4",
        "/tasks/test-task/media/video-1.mp4",
    )
    assert outcome.media["video-1.mp4"].content == content
    assert outcome.result["api"] == api(wire)
    assert outcome.result["operation"] == operation.name
    assert outcome.result["seconds"] == 8
    assert operation.polls == 3
    (_, paid_by), (_, saved) = outcome.paid
    assert paid_by["api"] == saved["api"] == api(wire)
    assert saved["name"] == operation.name
    assert [each["stage"] for each in outcome.progress] == ["submitted", "polling", "downloading"]
    assert "KEY" not in json.dumps(outcome.paid)


async def test_inline_videos(provider: FakeProvider, wire: dict[str, Any]) -> None:
    provider.script("cat", {"delivery": "inline", "bytes": 3_000_001})
    outcome = await ask(provider, {"prompt": "A cat"}, **wire)
    assert outcome.status == "completed", outcome
    assert len(outcome.media["video-1.mp4"].content) == 3_000_001
    assert outcome.result["videos"][0]["uri"] is None


async def test_vertex_copies_what_it_put_into_a_bucket(provider: FakeProvider, tmp_path: Path) -> None:
    wire = {**of_wire("vertex", provider, tmp_path), "storage_base_url": provider.url}
    outcome = await ask(provider, {"prompt": "A cat", "storage_uri": "gs://bucket/folder"}, **wire)
    assert outcome.status == "completed", outcome
    assert outcome.result["videos"][0]["uri"] == "gs://bucket/folder/op-1.mp4"
    assert outcome.media["video-1.mp4"].content == mp4(provider.video.operations["op-1"])


async def test_looks_that_fail_are_no_failure(provider: FakeProvider, wire: dict[str, Any]) -> None:
    provider.script("cat", {"poll_faults": ["drop", "garbage", 500, 503, 429, 401, 404, "ok", 502], "polls": 8})
    outcome = await ask(provider, {"prompt": "A cat"}, **wire)
    assert outcome.status == "completed", outcome
    assert provider.video.summary()["most_taken"] == 1
    assert provider.video.operations["op-1"].polls == 10
    troubles = [each["polls_failed"] for each in outcome.progress if "polls_failed" in each]
    assert any("500" in each for each in troubles)
    assert any("cannot be read" in each for each in troubles)


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
    aliases = {"model_aliases_text": f"{old}=gemini-omni-1.1-flash"}
    aliased = await ask(provider, {"prompt": "A cat", "model": old}, **aliases)
    assert (aliased.result["model"], aliased.result["api"]) == ("gemini-omni-1.1-flash", "interactions")


@pytest.mark.parametrize("words", ["The prompt could not be used.", ""])
async def test_filtered(provider: FakeProvider, wire: dict[str, Any], words: str) -> None:
    provider.script("cat", {"filtered": words})
    outcome = await ask(provider, {"prompt": "A cat"}, **wire)
    code = "no_video" if not words and api(wire) == "interactions" else "content_filtered"
    assert (outcome.status, outcome.error_code) == ("failed", code)
    if words:
        assert outcome.error_info["filtered"]["reasons"] == [words]
    assert outcome.paid[-1][1]["closed"] == "filtered"


async def test_the_audio_filter_has_retries_of_its_own(provider: FakeProvider, wire: dict[str, Any]) -> None:
    words = "We encountered an issue with the audio for your prompt. You have not been charged for this attempt."
    provider.script("cat", *[{"filtered": words}] * 3)
    failed = await ask(provider, {"prompt": "A cat"}, veo_audio_retries=1, **wire)
    assert (failed.status, failed.error_code) == ("failed", "content_filtered")
    assert len(provider.video.operations) == 2
    passed = await ask(provider, {"prompt": "A cat"}, veo_audio_retries=1, **wire)
    assert passed.status == "completed"
    assert [each.get("audio_retries") for name, each in passed.paid if name == "operation"] == [None, 1, 1]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ({"code": 13, "message": "internal"}, "retry", "provider_error"),
        ({"code": 3, "message": "bad size"}, "failed", "provider_refused"),
        ({"code": 3, "message": "violates Vertex AI's usage guidelines"}, "failed", "content_filtered"),
    ],
)
async def test_operations_that_break(
    provider: FakeProvider, wire: dict[str, Any], error: dict[str, Any], status: str, code: str
) -> None:
    provider.script("cat", {"operation_error": error})
    outcome = await ask(provider, {"prompt": "A cat"}, **wire)
    if api(wire) == "interactions" and error["code"] == 13:  # its errors have no google.rpc.Code
        status, code = "failed", "provider_refused"
    assert (outcome.status, outcome.error_code) == (status, code)
    assert outcome.paid[-1][1]["closed"] == "failed"


async def test_the_next_worker_resumes_on_the_same_account(provider: FakeProvider, wire: dict[str, Any]) -> None:
    first = await ask(provider, {"prompt": "A cat"}, **wire)
    paid = Paid(first.paid[0][1], first.paid[1][1])
    again = await ask(provider, {"prompt": "A cat"}, options={"paid": paid}, **wire)
    assert again.status == "completed"
    assert again.result["operation"] == first.result["operation"]
    assert again.paid == []
    assert provider.journal.requests == 1


async def test_an_account_that_is_not_here_is_waited_for_and_then_named(provider: FakeProvider) -> None:
    first = await ask(provider, {"prompt": "A cat"})
    paid = Paid(first.paid[0][1], first.paid[1][1])
    elsewhere = await ask(provider, {"prompt": "A cat"}, options={"paid": paid}, gemini_api_key="ANOTHER")
    assert (elsewhere.status, elsewhere.error_code, elsewhere.after) == ("snoozed", "account_not_here", 10)
    (checkpoint,) = elsewhere.checkpoints
    late = await ask(
        provider,
        {"prompt": "A cat"},
        options={"paid": paid, "checkpoint": checkpoint},
        gemini_api_key="ANOTHER",
        account_wait_seconds=0,
    )
    assert (late.status, late.error_code) == ("failed", "account_not_configured")
    assert key_digest("KEY") in (late.error or "")
    assert provider.journal.requests == 1


async def test_the_wait_for_an_account_is_over_once_it_is_here(provider: FakeProvider) -> None:
    first = await ask(provider, {"prompt": "A cat"})
    paid = Paid(first.paid[0][1], first.paid[1][1])
    here = await ask(
        provider, {"prompt": "A cat"}, options={"paid": paid, "checkpoint": {"account_missing_since": 1.0}}
    )
    assert here.status == "completed"
    assert here.checkpoints == [{}]
    again = await ask(provider, {"prompt": "A cat"}, options={"paid": paid, "checkpoint": {}}, gemini_api_key="ANOTHER")
    assert (again.status, again.error_code) == ("snoozed", "account_not_here")


async def test_the_upstream_of_an_operation_was_removed(provider: FakeProvider) -> None:
    """The worker hands on its name alone; the environment's own account does not stand in for it."""
    first = await ask(provider, {"prompt": "A cat"})
    paid = Paid({**first.paid[0][1], "upstream": "gone"}, first.paid[1][1])
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid, "upstream": Upstream("gone", "")})
    assert (outcome.status, outcome.error_code) == ("snoozed", "account_not_here")
    assert "upstream 'gone'" in (outcome.error or "")


async def test_what_is_over_is_not_resumed(provider: FakeProvider) -> None:
    paid = Paid({"api": "interactions"}, {"closed": "retried"})
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid})
    assert outcome.status == "completed"
    assert provider.journal.requests == 1


async def test_fields_that_the_wire_does_not_carry(provider: FakeProvider) -> None:
    outcome = await ask(provider, {"prompt": "A cat", "negative_prompt": "rain", "seed": 1})
    assert (outcome.status, outcome.error_code) == ("failed", "unsupported_field")
    assert [each["pointer"] for each in outcome.error_info["errors"]] == ["/negative_prompt"]
    assert provider.journal.requests == 0


async def test_the_key_does_not_leave_the_provider(provider: FakeProvider) -> None:
    options = FakeProviderOptions(api_key="KEY")
    async with FakeProvider(options) as own, FakeProvider() as other:
        other.script("elsewhere", {})
        await ask(other, {"prompt": "elsewhere"})  # makes op-1 there
        seen: list[bytes] = []
        takes = other.video.takes

        def watched(request: Any) -> bool:
            seen.extend(name for name, _ in request.headers)
            return takes(request)

        other.video.takes = watched  # type: ignore[method-assign]
        own.script("cat", {"redirect": f"{other.url}/v1beta/files/op-1:download?alt=media"})
        outcome = await ask(own, {"prompt": "A cat"})
        assert outcome.status == "completed", outcome
        assert own.video.keyless_downloads == 0
        assert seen
        assert b"x-goog-api-key" not in {name.lower() for name in seen}


async def test_a_redirect_inside_is_refused(provider: FakeProvider) -> None:
    async with FakeProvider() as inner:
        provider.script("cat", {"redirect": f"{inner.url}/v1beta/files/op-1:download"})
        outcome = await ask(provider, {"prompt": "A cat"}, media_allow="")
        assert (outcome.status, outcome.error_code) == ("failed", "media_refused")


async def test_upstreams_say_where_with_which_key_and_model(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_ACME", "SECRET")
    upstream = Upstream("acme", "gemini", base_url=provider.url, key_env="KEY_OF_ACME", model="veo-acme")
    outcome = await ask(
        provider, {"prompt": "A cat"}, options={"upstream": upstream}, gemini_base_url="http://127.0.0.1:9"
    )
    assert outcome.status == "completed", outcome
    assert (outcome.result["model"], outcome.result["api"]) == ("veo-acme", "gemini")
    assert outcome.paid[0][1] == {
        "upstream": "acme", "api": "gemini", "endpoint": provider.url, "project": "", "location": "",
        "key": key_digest("SECRET"),
    }  # fmt: skip
    monkeypatch.delenv("KEY_OF_ACME")
    without = await ask(provider, {"prompt": "A cat"}, options={"upstream": upstream})
    assert (without.status, without.error_code) == ("failed", "not_configured")
    assert "KEY_OF_ACME" in (without.error or "")


async def test_stopped_while_it_sends_the_handle_is_kept(provider: FakeProvider) -> None:
    """A deploy in the middle of a submission: the answer is waited for, so that the next worker resumes it."""
    from taskgate.handlers.video.handler import veo_handler
    from taskgate.task import Task
    from taskgate.testing import MemoryContext

    provider.script("cat", {"latency": 0.5})
    context = MemoryContext(asyncio.get_running_loop(), "t")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    running = asyncio.ensure_future(veo_handler(settings(provider)).function(task))
    await until(lambda: provider.journal.in_flight)
    context.reason = "shutdown"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [name for name, _ in context.paid] == ["intend", "operation"]


async def test_cancelled_while_it_is_made(provider: FakeProvider, wire: dict[str, Any]) -> None:
    from taskgate.handlers.video.handler import veo_handler
    from taskgate.task import Task
    from taskgate.testing import MemoryContext

    provider.script("cat", {"polls": 10_000})
    context = MemoryContext(asyncio.get_running_loop(), "t")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    running = asyncio.ensure_future(veo_handler(settings(provider, **wire)).function(task))
    await until(lambda: provider.video.counts["polls"])
    context.reason = "cancelled"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert provider.video.summary()["cancels"] == 1
    assert provider.video.operations["op-1"].cancelled
    assert context.paid[-1][1]["closed"] == "cancelled"


def test_identities_hold_no_secret_and_tell_accounts_apart(provider: FakeProvider) -> None:
    one, two = (account("gemini", None, settings(provider, gemini_api_key=key)) for key in ("A", "B"))
    assert one.identity() != two.identity()
    assert "'A'" not in repr(one)
    vertex = account("vertex", None, settings(provider, google_project="p", google_location="global"))
    assert vertex.endpoint == "https://aiplatform.googleapis.com"
    assert vertex.identity()["key"] == ""
