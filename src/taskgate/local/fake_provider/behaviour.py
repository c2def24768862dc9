"""What the fake provider does with one request: a behaviour, and the three ways to write one down.

As text (flags, markers in a prompt): `429 retry_after=2 times=1`. As JSON (`PUT /faults`, `PUT /scripts`):
`{"fault": "429", "retry_after": 2}`, `{"status": 429, "headers": {"retry-after": "2"}}` or `{"ok": "text"}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

MARKER = re.compile(r"\[\[(fault|latency):([^\[\]]*)\]\]")


class BadBehaviour(ValueError):
    """A behaviour that cannot be understood; the message says what would be."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to answer. The fields without a comment mean what they mean in an answer."""

    name: str = "ok"  # the outcome it is counted under
    status: int = 200
    headers: Mapping[str, str] | None = None
    body: Any = None  # sent instead of the usual one: a string as it is, anything else as JSON
    ok: str | None = None  # the text of the answer
    message: str | None = None  # the words of an error
    error_type: str | None = None
    error_code: str | None = None
    reply: Mapping[str, Any] | None = None  # merged into the assistant's message (tool_calls, refusal)
    finish_reason: str | None = "stop"
    latency: float | None = None  # seconds until the answer begins; None is the server's
    retry_after: float | None = None
    retry_after_ms: float | None = None
    retry_date: float | None = None  # Retry-After as a date, so many seconds from now
    retry_delay: str | None = None  # in the body, as Google does: "3.5s"
    hang: Any = False  # no answer at all, until the client closes; "before": a video is not even taken
    disconnect: str | None = None  # "before" the answer or in the "middle" of it
    malformed: bool = False  # the JSON stops half-way
    choices: bool = True  # False: an answer without choices
    header_seconds: float = 0.0  # the status line at once, the headers so much later
    body_seconds: float = 0.0  # half of the body at once, the rest so much later
    bytes: int = 0  # the text, or the video, is so long
    # of videos (video.py)
    polls: int = 0  # looks that find the operation running
    seconds: float = 0.0  # it runs so long at least
    filtered: str | None = None  # done without a video, for this reason ("": without one)
    operation_error: Mapping[str, Any] | None = None  # done with {"code", "message"}
    poll_faults: tuple[Any, ...] = ()  # what the first looks meet: a status, "drop", "garbage" or "ok"
    delivery: str = "uri"  # or "inline": in base64
    redirect: str | None = None  # where its download is sent on to


@dataclass(slots=True)
class Rule:
    """A behaviour that applies to some requests only: the first `times`, or a random `share` of them."""

    behaviour: Behaviour
    times: int | None = None
    share: float = 1.0


FAULTS: dict[str, Behaviour] = {
    "ok": Behaviour(),
    "429": Behaviour("429", 429, error_type="requests", error_code="rate_limit_exceeded"),
    "insufficient_quota": Behaviour(
        "insufficient_quota",
        429,
        message="You exceeded your current quota, please check your plan and billing details.",
        error_type="insufficient_quota",
        error_code="insufficient_quota",
    ),
    "529": Behaviour("529", 529, message="Overloaded", error_type="overloaded_error"),
    "html": Behaviour("html", 502, {"content-type": "text/html"}, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
    "content_filter": Behaviour("content_filter", finish_reason="content_filter", ok=""),
    "content_filter_400": Behaviour(
        "content_filter_400",
        400,
        message="The response was filtered due to the prompt triggering the content management policy.",
        error_type="invalid_request_error",
        error_code="content_filter",
    ),
    "hang": Behaviour("hang", hang=True),
    "disconnect": Behaviour("disconnect", disconnect="middle"),
    "no_finish_reason": Behaviour("no_finish_reason", finish_reason=None),
    "no_choices": Behaviour("no_choices", choices=False),
    "malformed": Behaviour("malformed", malformed=True),
    "slow_headers": Behaviour("slow_headers", header_seconds=1.0),
    "slow_body": Behaviour("slow_body", body_seconds=1.0),
    "huge": Behaviour("huge", bytes=10 * 1024**2),
}
FAULTS["overloaded"] = replace(FAULTS["529"], name="overloaded")

_WORDS = {
    400: ("invalid_request_error", None, "The request is invalid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "access_denied", "You have no access to this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    422: ("invalid_request_error", None, "The request cannot be processed."),
}
_ALIASES = {"when": "disconnect", "after": "retry_after"}
WORDS = {"drop", "garbage", "ok"}
_FIELDS = {field.name for field in fields(Behaviour)} - {"name"}
_NUMBERS = {"seconds", "latency", "retry_after", "retry_after_ms", "retry_date", "header_seconds", "body_seconds"}
_TEXTS = {
    "filtered",
    "delivery",
    "redirect",
    "ok",
    "message",
    "error_type",
    "error_code",
    "retry_delay",
    "disconnect",
    "finish_reason",
}


def named(name: str) -> Behaviour:
    """The behaviour of a fault's name, which may be any status from 400 to 599. Raises BadBehaviour."""
    if name in FAULTS:
        return FAULTS[name]
    if name.isdigit() and 400 <= int(name) <= 599:
        return of_status(int(name))
    known = ", ".join(FAULTS)
    raise BadBehaviour(f"no fault is called {name!r}: use a status from 400 to 599, or {known}")


def of_status(status: int) -> Behaviour:
    if str(status) in FAULTS:
        return FAULTS[str(status)]
    if status < 400:
        return Behaviour(str(status), status)
    kind, code, words = _WORDS.get(
        status,
        ("server_error", None, "The server had an error.")
        if status >= 500
        else ("invalid_request_error", None, "Refused."),
    )
    return Behaviour(str(status), status, message=words, error_type=kind, error_code=code)


def from_text(text: str) -> Rule:
    """`NAME key=value …` as a rule. Raises BadBehaviour."""
    name, *pairs = text.split()[:32] or [""]
    spec: dict[str, Any] = {"fault": name}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise BadBehaviour(f"{pair!r} in {text!r} is not key=value")
        spec[key] = value
    return from_json(spec)


def from_json(spec: Any) -> Rule:
    """A JSON object as a rule. Raises BadBehaviour."""
    if isinstance(spec, str):
        return from_text(spec)
    if not isinstance(spec, dict):
        raise BadBehaviour(f"a behaviour is an object or a string, not {spec!r}")
    values = dict(spec)
    times, share = values.pop("times", None), values.pop("share", 1.0)
    fault, status = values.pop("fault", None), values.pop("status", None)
    behaviour = Behaviour()
    if fault is not None:
        behaviour = named(str(fault))
    elif status is not None:
        number = int(_number("status", status))
        if not 200 <= number <= 599:
            raise BadBehaviour(f"status is a number from 200 to 599, not {status!r}")
        behaviour = of_status(number)
    for name, field in (("slow_body", "body_seconds"), ("slow_headers", "header_seconds")):
        if behaviour.name == name and "seconds" in values:
            values[field] = values.pop("seconds")
    changes: dict[str, Any] = {}
    for key, value in values.items():
        field = _ALIASES.get(key, key)
        if field not in _FIELDS:
            known = ", ".join(sorted(_FIELDS | {"fault", "times", "share"}))
            raise BadBehaviour(f"a behaviour has no {key!r}: it has {known}")
        changes[field] = _value(field, value)
    if changes.get("disconnect") not in (None, "before", "middle"):
        raise BadBehaviour('disconnect is "before" or "middle"')
    return Rule(
        replace(behaviour, **changes),
        None if times is None else int(_number("times", times)),
        _number("share", share),
    )


def _value(field: str, value: Any) -> Any:
    if value is None:
        return None
    if field in _NUMBERS:
        return _number(field, value)
    if field in ("bytes", "polls"):
        return int(_number(field, value))
    if field == "poll_faults":
        faults = value.split(",") if isinstance(value, str) else value
        known = isinstance(faults, list) and all(str(each) in WORDS or str(each).isdigit() for each in faults)
        if not known:
            raise BadBehaviour(f"poll_faults is a list of statuses and {', '.join(sorted(WORDS))}, not {value!r}")
        return tuple(faults)
    if field == "hang" and value == "before":
        return value
    if field in _TEXTS and not isinstance(value, str):
        raise BadBehaviour(f"{field} is a string, not {value!r}")
    if field in ("headers", "reply", "operation_error") and not isinstance(value, dict):
        raise BadBehaviour(f"{field} is an object, not {value!r}")
    if field in ("hang", "malformed", "choices"):
        return value in (True, "true", "1", "yes")
    if field == "headers":
        return {str(name).lower(): str(text) for name, text in value.items()}
    return value


def _number(field: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadBehaviour(f"{field} is a number, not {value!r}") from None
    if not 0 <= number < float("inf"):
        raise BadBehaviour(f"{field} is a number from 0, not {value!r}")
    return number
