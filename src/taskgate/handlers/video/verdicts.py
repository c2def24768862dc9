"""What answers and ends mean for the task: refused submissions, unknown ones, broken operations, filtered videos."""

from __future__ import annotations

import json
import re
from typing import Any

from taskgate.handlers.outcomes import Answer, Rules, judge
from taskgate.handlers.paid import UNKNOWN_STATUSES
from taskgate.handlers.redact import redact
from taskgate.handlers.video.route import RETIRED
from taskgate.handlers.video.wire import Broken, Finished
from taskgate.task import PermanentError, Retry, TaskError

NO_MODEL = re.compile(
    r"(?i)\bmodels?\b.*\b(not found|not supported|no longer|does not exist|unknown|deprecated|retired)"
)
UNSAFE = re.compile(r"(?i)usage guidelines|safety|responsible ai|sensitive|content polic")
TRANSIENT = {4, 8, 10, 13, 14}
"""google.rpc.Code: deadline exceeded, resource exhausted, aborted, internal, unavailable."""


def is_definite(answer: Answer) -> bool:
    """Whether an error answer says that the call was not taken. A gateway that gave up waiting does not know."""
    return not 200 <= answer.status < 300 and answer.status not in UNKNOWN_STATUSES


def not_delivered(words: str) -> Retry:
    info = {"provider": {"status": None, "message": words}, "delivery": "none"}
    return Retry(f"the provider cannot be reached: {words}", code="provider_unavailable", info=info)


def refused(answer: Answer, model: str, api: str, rules: Rules) -> TaskError:
    """A submission that was answered with an error."""
    error = judge(answer, rules)
    assert isinstance(error, TaskError)  # an answer that is no success
    words = str(error)
    if answer.status == 404 or (answer.status == 400 and NO_MODEL.search(words)):
        return _no_model(error, answer.status, model, api)
    if answer.status == 400 and UNSAFE.search(words):
        return PermanentError(words, code="content_filtered", info=error.info)
    return error


def _no_model(error: TaskError, status: int, model: str, api: str) -> PermanentError:
    said = error.info["provider"]["message"] if isinstance(error.info, dict) else str(error)
    instead = RETIRED.get(model) if api != "vertex" else None
    if instead is not None:
        return PermanentError(
            f"the provider has no model {model!r} any more ({status}: {said}): use {instead!r} instead, or set "
            f'TASKGATE_MODEL_ALIASES="{model}={instead}"',
            code="model_retired",
            info=error.info,
        )
    return PermanentError(
        f"the provider has no model {model!r} ({status}: {said}): name another one, or set TASKGATE_MODEL_ALIASES",
        code="model_not_found",
        info=error.info,
    )


def broken(state: Broken, rules: Rules) -> TaskError:
    """An operation that ended with an error: it was taken, and is over."""
    words = redact(state.message, rules.secrets) or "(no words)"
    info = {"provider": {"code": state.code, "message": words}}
    if state.code == 1:
        return PermanentError(
            f"the operation was cancelled at the provider: {words}", code="operation_cancelled", info=info
        )
    if UNSAFE.search(words):
        return PermanentError(
            f"the provider's content filter stopped the video: {words}", code="content_filtered", info=info
        )
    if state.code in TRANSIENT:
        return Retry(f"the provider could not make the video: {words}", code="provider_error", info=info)
    return PermanentError(f"the provider did not make the video: {words}", code="provider_refused", info=info)


def filtered(state: Finished, rules: Rules) -> PermanentError:
    """An operation that ended well, and without a video."""
    reasons = [redact(each, rules.secrets) for each in state.filtered_reasons]
    info = {"filtered": {"count": state.filtered_count, "reasons": reasons}}
    if not reasons and not state.filtered_count:
        return PermanentError("the operation ended without a video, and without a reason", code="no_video", info=info)
    return PermanentError(
        f"the provider's content filter kept the video back: {'; '.join(reasons) or 'no reason was given'}"[:2000],
        code="content_filtered",
        info=info,
    )


def by_audio_alone(state: Finished) -> bool:
    """Whether only the audio filter struck: often a false alarm, and not charged (js-genai#1272)."""
    return bool(state.filtered_reasons) and all("audio" in each.lower() for each in state.filtered_reasons)


def parsed(answer: Answer) -> Any:
    """The answer's JSON. Raises ValueError."""
    try:
        return json.loads(answer.body)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
