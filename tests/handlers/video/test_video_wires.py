"""Every request of the three wires is the one that google-genai sends (recorded by scripts/record_genai.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.handlers.media import Downloader
from taskgate.handlers.video import inputs
from taskgate.handlers.video.accounts import Account, account
from taskgate.handlers.video.request import check
from taskgate.handlers.video.route import route, unsupported
from taskgate.handlers.video.wire import Broken, Finished, HttpCall, Pending
from taskgate.settings import Settings

RECORDED = Path(__file__).parent.parent / "genai"
BASE = "https://provider.test"
SETTINGS = Settings(gemini_api_key="KEY", gemini_base_url=BASE, google_project="p", vertex_base_url=BASE)


def recorded(api: str) -> list[Any]:
    content = json.loads((RECORDED / f"{api}.json").read_text(encoding="utf-8"))
    return [pytest.param(api, case, id=f"{api}-{n}") for n, case in enumerate(content["cases"])]


def normal(value: Any) -> str:
    return json.dumps(value, sort_keys=True).replace("${base}", BASE)


def same(ours: HttpCall, theirs: dict[str, Any]) -> None:
    assert (ours.method, ours.path) == (theirs["method"], theirs["path"])
    assert normal(ours.body) == normal(theirs["body"])


def of(api: str) -> Account:
    return account(api, None, SETTINGS)


@pytest.mark.parametrize(("api", "case"), [*recorded("gemini"), *recorded("vertex"), *recorded("interactions")])
async def test_requests_are_those_of_google_genai(api: str, case: dict[str, Any]) -> None:
    request = json.loads(json.dumps(case["request"]).replace("${base}", BASE))
    settings = SETTINGS.model_copy(update={"veo_api": api})
    to = route(check(request), None, settings)
    assert (to.api, unsupported(request, to)) == (api, [])
    chosen = of(api)
    media = Downloader(max_bytes=1000)
    call = chosen.wire.submission(await inputs.load(request, chosen, media, media), to.model)
    submission, poll, *cancel = case["sent"]
    same(call, submission)
    name = {
        "gemini": "models/veo-3.1-generate-preview/operations/op1",
        "vertex": "projects/p/locations/us-central1/publishers/google/models/veo-3.1-generate-001/operations/op1",
        "interactions": "int1",
    }[api]
    same(chosen.wire.poll(name), poll)
    for theirs in cancel:
        same(chosen.wire.cancel(name), theirs)
    assert (await chosen.headers()).keys() == {"x-goog-api-key"} if submission["auth"] == "key" else chosen.tokens


def test_every_recorded_field_is_there_and_every_field_is_recorded() -> None:
    """What `route` lets through is what a recorded case proves."""
    from taskgate.handlers.video.route import FIELDS

    for api, fields in FIELDS.items():
        content = json.loads((RECORDED / f"{api}.json").read_text(encoding="utf-8"))
        shown = {name for case in content["cases"] for name in case["request"]}
        assert shown | {"sample_count"} == fields | {"sample_count"}, api


OPERATION = {"name": "models/m/operations/1"}
ENDS: list[tuple[str, Any, Any]] = [
    ("gemini", {**OPERATION, "done": False}, Pending),
    ("gemini", OPERATION, Pending),
    ("gemini", {**OPERATION, "done": True, "error": {"code": 13, "message": "boom"}}, Broken(13, "boom")),
    ("vertex", {**OPERATION, "done": True, "error": {"message": "boom"}}, Broken(None, "boom")),
    ("gemini", {**OPERATION, "done": True}, Finished([], 0, [])),
    ("gemini", {**OPERATION, "done": True, "response": None}, Finished([], 0, [])),
    (
        "gemini",
        {
            **OPERATION,
            "done": True,
            "response": {"generateVideoResponse": {"raiMediaFilteredCount": 1, "raiMediaFilteredReasons": ["no"]}},
        },
        Finished([], 1, ["no"]),
    ),
    ("vertex", {**OPERATION, "done": True, "response": {"raiMediaFilteredCount": 2}}, Finished([], 2, [])),
    ("interactions", {"id": "i", "status": "requires_continuation"}, Pending),
    ("interactions", {"id": "i", "status": "cancelled"}, Broken(1, "cancelled: no words")),
    ("interactions", {"id": "i", "status": "budget_exceeded"}, Broken(None, "budget_exceeded: no words")),
    (
        "interactions",
        {"id": "i", "status": "failed", "errors": [{"code": "x", "message": "boom"}]},
        Broken(None, "failed: boom"),
    ),
    (
        "interactions",
        {
            "status": "completed",
            "steps": [
                {"type": "user_input", "content": [{"type": "video", "uri": "https://x/mine"}]},
                {"type": "model_output", "content": [{"type": "text", "text": "I cannot."}]},
            ],
        },
        Finished([], 0, ["I cannot."]),
    ),
]


@pytest.mark.parametrize(("api", "body", "expected"), ENDS)
def test_states(api: str, body: Any, expected: Any) -> None:
    state = of(api).wire.state(body)
    if expected is Pending:
        assert state == Pending()
    else:
        assert state == expected


@pytest.mark.parametrize("api", ["gemini", "vertex", "interactions"])
@pytest.mark.parametrize("body", [None, [], "done", {}, {"error": "html"}])
def test_what_is_no_answer(api: str, body: Any) -> None:
    with pytest.raises(ValueError, match="the answer"):
        of(api).wire.state(body)
    assert of(api).wire.operation(body) is None
