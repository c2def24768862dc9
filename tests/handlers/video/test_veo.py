"""The `veo` handler against a fake provider, over all three wires: following an operation and fetching its video."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.local.fake_provider.operations import mp4
from tests.handlers.video.asking import api, ask, of_wire, settings, started
from tests.waiting import happens


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


async def test_cancelled_while_it_is_made(provider: FakeProvider, wire: dict[str, Any]) -> None:
    provider.script("cat", {"polls": 10_000})
    running, context = started(settings(provider, **wire))
    await happens(lambda: provider.video.counts["polls"])
    context.reason = "cancelled"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert provider.video.summary()["cancels"] == 1
    assert provider.video.operations["op-1"].cancelled
    assert context.paid[-1][1]["closed"] == "cancelled"
