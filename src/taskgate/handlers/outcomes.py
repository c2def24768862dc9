"""What a chat provider's answer means for the task: a result, or the error that steers it.

Pure functions; the cases are data in conformance/workers/provider_answers.json, which every worker must pass.
Shapes: OpenAI's API reference (chat completions, error codes); Google's `google.rpc.RetryInfo` in an error's details.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from taskgate.handlers.redact import redact, without_tags
from taskgate.task import PermanentError, Retry, TaskError, Throttled

QUOTA = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
FILTERED = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation"}
THROTTLE_SECONDS = 10.0
"""Without a word from the provider a throttled task is put off by so much, half to one and a half times."""

Failure = Literal["connect", "timeout", "disconnect"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What the judgement needs from outside."""

    max_throttle: float = 3600.0
    secrets: Iterable[str] = ()
    """Words that no message may repeat, such as the key."""
    keep_raw: bool = False
    dice: Callable[[], float] = field(default=random.random)


@dataclass(frozen=True, slots=True)
class _Problem:
    message: str
    type: str
    code: str
    details: list[Any]


def judge(answer: Answer, rules: Rules) -> dict[str, Any] | TaskError:
    """The task's result, or the error that its handler should raise."""
    try:
        body = json.loads(answer.body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        body = None
    if not 200 <= answer.status < 300:
        return _refusal(answer, answer.status, _problem(body, answer.body, rules), rules)
    if not isinstance(body, dict):
        words = redact(without_tags(answer.body), rules.secrets, 200)
        return _incomplete(answer, f"the provider's answer is not a JSON object: {words or '(empty)'}")
    if body.get("error") and not body.get("choices"):
        # some relays answer 200 with the error of the provider behind them
        problem = _problem(body, answer.body, rules)
        if problem.code.isdigit() and 400 <= int(problem.code) <= 599:
            return _refusal(answer, int(problem.code), problem, rules)
        return _incomplete(answer, f"the provider answered with an error: {problem.message}")
    return _result(answer, body, rules)


def judge_failure(failure: Failure, words: str, *, sent_for: float | None = None) -> TaskError:
    """The error for a call that had no answer: `connect` and `disconnect` say where, `timeout` how long."""
    provider = {"status": None, "request_id": None, "message": words, "type": failure, "code": None}
    info = {"provider": provider, "delivery": "none" if failure == "connect" else "unknown"}
    if failure == "timeout":
        waited = f" in {sent_for:g} s" if sent_for else ""
        return Retry(f"the provider did not answer{waited}: {words}", code="provider_timeout", info=info)
    where = "cannot be reached" if failure == "connect" else "closed the connection before its answer was complete"
    return Retry(f"the provider {where}: {words}", code="provider_unavailable", info=info)


def _result(answer: Answer, body: dict[str, Any], rules: Rules) -> dict[str, Any] | TaskError:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return _incomplete(answer, "the provider's answer has no choices")
    shown = []
    for choice in choices:
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            return _incomplete(answer, "a choice of the provider's answer has no message")
        reason = choice.get("finish_reason")
        if not isinstance(reason, str) or not reason:
            return _incomplete(answer, "the provider's answer has no finish_reason, so it may be cut off")
        shown.append({"text": _text(message), "message": message, "finish_reason": reason})
    # of several answers, the first that was let through stands for all
    first = next((each for each in shown if each["finish_reason"] != "content_filter"), None)
    if first is None:
        return PermanentError(
            "the provider's content filter stopped the answer",
            code="content_filtered",
            info=_info(answer, _Problem("finish_reason content_filter", "", "content_filter", [])),
        )
    result = {**first, "model": body.get("model"), "usage": body.get("usage")}
    if len(shown) > 1:
        result["choices"] = shown
    if rules.keep_raw:
        result["raw"] = body
    return result


def _refusal(answer: Answer, status: int, problem: _Problem, rules: Rules) -> TaskError:
    kind = next((each for each in (problem.code, problem.type) if each not in ("", str(status))), "")
    words = f"the provider answered {status}{f' ({kind})' if kind else ''}: {problem.message}"
    info = _info(answer, problem, status)
    named = {problem.code.lower(), problem.type.lower()}
    after = _wait(answer, problem, rules.max_throttle)
    if status == 402 or (status in (403, 429) and named & QUOTA):
        return PermanentError(words, code="insufficient_quota", info=info)
    if status in (400, 403) and named & FILTERED:
        return PermanentError(words, code="content_filtered", info=info)
    if status in (429, 529) or (status == 503 and after is not None):
        if after is None:
            after = min(THROTTLE_SECONDS * (0.5 + rules.dice()), rules.max_throttle)
        return Throttled(words, after=after, info=info)
    if status in (408, 504):
        return Retry(words, after=after, code="provider_timeout", info=info)
    if status in (502, 503):
        return Retry(words, after=after, code="provider_unavailable", info=info)
    if status == 409 or status >= 500:
        return Retry(words, after=after, code="provider_error", info=info)
    code = "provider_auth" if status in (401, 403) else "provider_refused"
    return PermanentError(words, code=code, info=info)


def _incomplete(answer: Answer, words: str) -> TaskError:
    return Retry(words, code="incomplete_answer", info=_info(answer, _Problem(words, "", "", [])))


def _info(answer: Answer, problem: _Problem, status: int | None = None) -> dict[str, Any]:
    request_id = answer.headers.get("x-request-id") or answer.headers.get("request-id")
    return {
        "provider": {
            "status": status or answer.status,
            "request_id": request_id[:200] if request_id else None,
            "message": problem.message,
            "type": problem.type or None,
            "code": problem.code or None,
        }
    }


def _problem(body: Any, text: str, rules: Rules) -> _Problem:
    if isinstance(body, list) and body:  # Google's OpenAI-shaped route wraps its error in a list
        body = body[0]
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        words = error if isinstance(error, str) else without_tags(text)
        return _Problem(redact(words, rules.secrets) or "(no words)", "", "", [])
    words = next((error[name] for name in ("message", "detail", "error_description") if error.get(name)), "")
    if not isinstance(words, str):
        words = json.dumps(words, ensure_ascii=False)
    code = error.get("code")
    details = error.get("details")
    return _Problem(
        redact(words, rules.secrets) or "(no words)",
        redact(str(error.get("type") or error.get("status") or ""), rules.secrets, 100),
        redact("" if code is None or isinstance(code, bool) else str(code), rules.secrets, 100),
        details if isinstance(details, list) else [],
    )


def retry_after(answer: Answer, most: float) -> float | None:
    """The seconds that an answer asks to wait, by its headers, from 0 to `most`; None if they do not say."""
    return _wait(answer, _Problem("", "", "", []), most)


def _wait(answer: Answer, problem: _Problem, most: float) -> float | None:
    """The seconds that the provider asks to wait, from 0 to `most`; None if it does not say."""
    headers = answer.headers
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        seconds /= 1000
    if seconds is None:
        seconds = _number(headers.get("retry-after"))
    if seconds is None:
        seconds = _until(headers.get("retry-after"), headers.get("date"))
    for detail in problem.details if seconds is None else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str):
            seconds = _number(delay.removesuffix("s"))
    return None if seconds is None else min(max(seconds, 0.0), most)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _until(date: str | None, now: str | None) -> float | None:
    """Seconds between two HTTP dates. The provider's own clock counts, ours only if it shows none."""
    end, start = _date(date), _date(now) or datetime.now(UTC)
    return (end - start).total_seconds() if end else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text) if text else None
    except (TypeError, ValueError):
        return None
    return date.replace(tzinfo=UTC) if date and date.tzinfo is None else date


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
