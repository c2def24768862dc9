"""The judgement of provider answers, driven by the cases that every worker must pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.handlers.outcomes import Answer, Rules, judge, judge_failure
from taskgate.handlers.redact import redact, without_tags
from taskgate.task import PermanentError, Retry, TaskError, Throttled

CASES = json.loads((Path(__file__).parents[2] / "conformance" / "workers" / "provider_answers.json").read_text("utf-8"))
KINDS = {"retry": Retry, "throttled": Throttled, "permanent": PermanentError}


def answer_of(case: dict[str, Any]) -> Answer:
    body = case["body"]
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Answer(case["status"], case["headers"], text)


@pytest.mark.parametrize("case", CASES["answers"], ids=lambda case: case["name"])
def test_answer(case: dict[str, Any]) -> None:
    outcome = judge(answer_of(case), Rules(max_throttle=3600))
    expect = case["expect"]
    if expect["outcome"] == "completed":
        assert isinstance(outcome, dict), outcome
        if "result" in expect:
            assert outcome == expect["result"]
        else:
            assert outcome["text"] == expect["text"]
        assert len(outcome.get("choices", [None])) == expect.get("choices", 1)
        return
    assert isinstance(outcome, TaskError), outcome
    assert type(outcome) is KINDS[expect["outcome"]]
    assert outcome.code == expect["code"]
    provider = outcome.info["provider"]
    if "after" in expect:
        assert getattr(outcome, "after", None) == pytest.approx(expect["after"])
    if "after_between" in expect:
        low, high = expect["after_between"]
        assert isinstance(outcome, Throttled)
        assert low <= outcome.after <= high
    if "info" in expect:
        assert provider == expect["info"]
    if "words" in expect:
        assert outcome.message == expect["words"]
    if "message_has" in expect:
        assert expect["message_has"] in outcome.message
        assert expect["message_has"] in provider["message"]
    if "message_lacks" in expect:
        assert expect["message_lacks"] not in outcome.message + json.dumps(outcome.info)
    if "message_max" in expect:
        assert len(provider["message"]) <= expect["message_max"]


@pytest.mark.parametrize("case", CASES["failures"], ids=lambda case: case["name"])
def test_failure(case: dict[str, Any]) -> None:
    outcome = judge_failure(case["failure"], "words")
    assert type(outcome) is KINDS[case["expect"]["outcome"]]
    assert outcome.code == case["expect"]["code"]
    assert "words" in outcome.message


def test_the_default_throttle_has_jitter_and_its_bound() -> None:
    answer = Answer(429, {}, "")
    waits = [judge(answer, Rules(dice=lambda share=share: share)).after for share in (0.0, 0.5, 1.0)]  # type: ignore
    assert waits == [5.0, 10.0, 15.0]
    assert judge(answer, Rules(max_throttle=2)).after == 2  # type: ignore[union-attr]


def test_the_raw_answer_is_kept_on_request_only() -> None:
    answer = answer_of(CASES["answers"][0])
    assert "raw" not in judge(answer, Rules())  # type: ignore[operator]
    assert judge(answer, Rules(keep_raw=True))["raw"] == CASES["answers"][0]["body"]  # type: ignore[index]


def test_redact_knows_the_configured_key_and_keeps_ordinary_words() -> None:
    assert redact("key hunter22 is wrong", ["hunter22"]) == "key [key] is wrong"
    assert redact("a task-management skill of the key-holder") == "a task-management skill of the key-holder"
    assert redact("Authorization: Bearer abcdefghijkl") == "Authorization: [key]"
    assert "\x00" not in redact("a\x00b\ud800c")
    assert len(redact("x y " * 5000)) == 2000


def test_without_tags_leaves_other_text_alone() -> None:
    assert without_tags("a < b > c") == "a < b > c"
    assert without_tags("<p>no <b>way</b></p>").split() == ["no", "way"]
