"""The client's talk with the API without the network: what to send, what to repeat, what an answer means.

Each function is a generator that yields a `Call` (or a `Pause`) and is sent the answer, so that the blocking
and the asyncio client share every rule.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from taskgate.errors import (
    Conflict,
    FieldProblem,
    IdempotencyMismatch,
    NotAllowed,
    NotFound,
    NotReachable,
    RequestRefused,
    ServerError,
    ServiceUnavailable,
    SubmissionUncertain,
    TaskExists,
    TaskgateError,
)

T = TypeVar("T")

TRIES = 5
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
"""Seconds; also the most that a Retry-After is obeyed. A longer one is left to the caller."""
PASSING = frozenset({429, 502, 503, 504})
NOT_TAKEN = frozenset({"busy", "overloaded", "schema_mismatch"})
"""Codes of a 503 that is sure to have written nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. `repeatable`: sending it twice does what sending it once does."""

    method: str
    path: str
    params: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    content_type: str = "application/json"
    repeatable: bool = True
    wait: float = 0.0
    """Seconds the server may hold the answer."""
    task_id: str | None = None
    """The id that a submission brings along."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise ServerError(
                f"the answer (HTTP {self.status}) is no JSON: is this a taskgate API?", status=self.status
            ) from None


@dataclass(frozen=True, slots=True)
class Trouble:
    """No answer. `sent` is False when the connection was not even made."""

    reason: str
    sent: bool


Step = Call | Pause
Answer = Reply | Trouble | None
Flow = Generator[Step, Answer, T]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reply, and whether an earlier try of the same call may have been carried out."""

    reply: Reply
    doubtful: bool


def exchange(call: Call) -> Flow[Outcome]:
    """Send a call, repeating it where that is safe. Raises NotReachable, ServiceUnavailable, SubmissionUncertain.

    Safe is: nothing was sent, or the call is repeatable, or the API said that it did not take it.
    """
    doubtful = False
    for attempt in range(1, TRIES + 1):
        answer = yield call
        assert answer is not None
        asked: float | None = None
        if isinstance(answer, Reply):
            if answer.status not in PASSING:
                return Outcome(answer, doubtful)
            asked = retry_after(answer.headers)
            error = problem_of(answer)
            untouched = answer.status == 429 or error.code in NOT_TAKEN
        else:
            error = NotReachable(answer.reason)
            untouched = not answer.sent
        doubtful = doubtful or not untouched
        last = attempt == TRIES or error.code == "schema_mismatch" or (asked is not None and asked > LONGEST_PAUSE)
        if doubtful and call.content is not None and (last or not call.repeatable):
            raise SubmissionUncertain(
                f"it is not known whether the task was written: {error.detail}",
                status=error.status,
                task_id=call.task_id or error.task_id,
                problem=error.problem,
            )
        if last:
            raise error
        backoff = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        yield Pause(max(backoff, asked or 0.0))
    raise AssertionError("the last try either returns or raises")


def checked(outcome: Outcome, *fine: int) -> Any:
    """The body of a reply of one of the statuses `fine`; raises what the problem document says for others."""
    if outcome.reply.status in fine:
        return outcome.reply.json()
    raise problem_of(outcome.reply)


def problem_of(reply: Reply) -> TaskgateError:
    """The error of a reply that is not what was hoped for (RFC 9457, with `code` and `errors`)."""
    try:
        document = json.loads(reply.body)
    except ValueError:
        document = None
    problem: dict[str, Any] = document if isinstance(document, dict) else {}
    detail = problem.get("detail") or problem.get("title") or f"the API answered HTTP {reply.status}"
    raw_errors = problem.get("errors")
    errors = tuple(
        FieldProblem(str(each.get("pointer", "")), str(each.get("detail", "")))
        for each in (raw_errors if isinstance(raw_errors, list) else [])
        if isinstance(each, dict)
    )
    code = problem.get("code")
    kind = _kind(reply.status, code)
    task_id = problem.get("task_id")
    return kind(
        str(detail),
        code=code if isinstance(code, str) else None,
        status=reply.status,
        errors=errors,
        task_id=task_id if isinstance(task_id, str) else None,
        retry_after=retry_after(reply.headers),
        problem=problem,
    )


def _kind(status: int, code: Any) -> type[TaskgateError]:
    if code == "task_exists":
        return TaskExists
    if code == "idempotency_mismatch":
        return IdempotencyMismatch
    if status in (401, 403):
        return NotAllowed
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    if status in PASSING:
        return ServiceUnavailable
    return RequestRefused if 400 <= status < 500 else ServerError


def retry_after(headers: dict[str, str]) -> float | None:
    """Seconds of a Retry-After header in either form (RFC 9110, 10.2.3); None when absent or unreadable."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def remaining(deadline: float | None) -> float:
    """Seconds until `deadline` of time.monotonic(), infinite for None."""
    return float("inf") if deadline is None else deadline - time.monotonic()
