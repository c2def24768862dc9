"""What goes wrong for a producer: one tree of errors, with the API's stable codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskgate.views import Submitted, TaskView


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that is wrong with a body. `pointer` is a JSON Pointer (RFC 6901), "" for the whole."""

    pointer: str
    detail: str


class TaskgateError(Exception):
    """Base of everything that the client and `enqueue` raise on purpose.

    `code` is the API's stable code or one of this module's; `status` the HTTP status, None when there was no
    answer; `errors` say what is wrong where; `problem` is the whole problem document (RFC 9457).
    """

    code = "error"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        status: int | None = None,
        errors: tuple[FieldProblem, ...] = (),
        task_id: str | None = None,
        retry_after: float | None = None,
        problem: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.status = status
        self.errors = errors
        self.task_id = task_id
        self.retry_after = retry_after
        self.problem = problem or {}
        self.accepted: list[Submitted] = []
        """From submit_many: what earlier chunks had committed already."""

    def __str__(self) -> str:
        wrong = [f"{each.pointer or '(body)'}: {each.detail}" for each in self.errors]
        return "; ".join([self.detail, *(line for line in wrong if line not in self.detail)])


class NotReachable(TaskgateError):
    """No connection to the API could be had; nothing was sent."""

    code = "not_reachable"


class ServiceUnavailable(TaskgateError):
    """The API answers, but cannot work now (502, 503, 504, 429); `retry_after` in seconds where it said so."""

    code = "unavailable"


class SubmissionUncertain(TaskgateError):
    """A submission failed in a way that leaves open whether it was written.

    `task_id` is the id that the API had made, where it told: look it up before submitting again. Submissions
    with a `task_id` of the caller's or an `idempotency_key` are repeated by the client itself and do not end here
    for want of a try.
    """

    code = "submission_uncertain"


class RequestRefused(TaskgateError):
    """The API refuses the request as it stands; `errors` say which fields."""

    code = "refused"


class IdempotencyMismatch(RequestRefused):
    """The idempotency key was used for another submission; nothing was written."""

    code = "idempotency_mismatch"


class NotAllowed(TaskgateError):
    """No key, a wrong key, or a key that may not do this."""

    code = "not_allowed"


class NotFound(TaskgateError):
    """No such task (or another tenant's), or no such task type."""

    code = "not_found"


class Conflict(TaskgateError):
    """The task is in a state that does not allow it."""

    code = "conflict"


class TaskExists(Conflict):
    """The task id is taken; nothing was written."""

    code = "task_exists"


class ServerError(TaskgateError):
    """The API failed, or answered what is no answer of this API."""

    code = "server_error"


class WaitTimeout(TaskgateError):
    """The task was not final in time; `task` is how it stood."""

    code = "wait_timeout"

    def __init__(self, detail: str, task: TaskView) -> None:
        super().__init__(detail, task_id=task.task_id)
        self.task = task


class TaskFailed(TaskgateError):
    """The task ended `failed`; `task` tells how."""

    code = "task_failed"

    def __init__(self, task: TaskView) -> None:
        super().__init__(f"task {task.task_id} failed: {task.error}", code=task.error_code, task_id=task.task_id)
        self.task = task
