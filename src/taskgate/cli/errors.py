"""Exit codes, and errors as a person or a machine reads them. Never a traceback for what can be expected."""

from __future__ import annotations

import json
import sys
from typing import Any

OK, FAILED, USAGE, SCHEMA, UNREACHABLE = 0, 1, 2, 3, 4


class CliError(Exception):
    """Ends the command. `message` says what is wrong, `remedy` what helps."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "error",
        exit_code: int = FAILED,
        remedy: str | None = None,
        errors: list[dict[str, str]] | None = None,
        task_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.exit_code = message, code, exit_code
        self.remedy, self.errors, self.task_id = remedy, errors or [], task_id


def wants_json() -> bool:
    """Whether this command line asks for output for machines, also when it could not be parsed."""
    return "--json" in sys.argv[1:]


def report(error: CliError) -> None:
    """Writes the error to stderr: two lines for people, one JSON object with --json."""
    if wants_json():
        body: dict[str, Any] = {"error": {"code": error.code, "message": error.message, "remedy": error.remedy}}
        if error.errors:
            body["error"]["errors"] = error.errors
        if error.task_id:
            body["error"]["task_id"] = error.task_id
        print(json.dumps(body, ensure_ascii=False), file=sys.stderr)
        return
    print(f"Error: {error.message}", file=sys.stderr)
    for each in error.errors:
        print(f"  {each['pointer'] or '(body)'}: {each['detail']}", file=sys.stderr)
    if error.remedy:
        print(f"  {error.remedy}", file=sys.stderr)


def explain(error: BaseException) -> CliError | None:
    """What an expected error means for the command line; None for one that nobody expected."""
    if isinstance(error, CliError):
        return error
    from taskgate.errors import TaskgateError

    if isinstance(error, TaskgateError):
        return _of_client(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # Typer's own: a wrong command line
        return CliError(
            error.format_message(), code="usage", exit_code=USAGE, remedy="See `taskgate --help` and `COMMAND --help`."
        )
    return None


def _of_client(error: Any) -> CliError:
    from taskgate.errors import NotAllowed, NotReachable, RequestRefused, ServiceUnavailable, SubmissionUncertain

    exit_code, remedy = FAILED, None
    if isinstance(error, NotReachable):
        exit_code = UNREACHABLE
        remedy = "Start it with `taskgate up` or `taskgate api`, or set TASKGATE_URL to where it is."
    elif isinstance(error, ServiceUnavailable):
        exit_code = SCHEMA if error.code == "schema_mismatch" else UNREACHABLE
        remedy = (
            "Run `taskgate migrate`." if exit_code == SCHEMA else "Try again; `taskgate doctor` says what is wrong."
        )
    elif isinstance(error, SubmissionUncertain):
        exit_code = UNREACHABLE
        remedy = (
            f"Look before you submit again: taskgate get {error.task_id}"
            if error.task_id
            else "Give --idempotency-key, so that a submission can be repeated safely."
        )
    elif error.code == "task_exists":
        remedy = (
            "To repeat a submission safely use --idempotency-key: it answers with the task that is there. "
            "An id of your own, --task-id, is for one submission only."
        )
    elif isinstance(error, NotAllowed):
        remedy = "Set TASKGATE_API_KEY to a key of this service."
    elif isinstance(error, RequestRefused):
        exit_code = USAGE
    return CliError(
        error.detail,
        code=error.code,
        exit_code=exit_code,
        remedy=remedy,
        errors=[{"pointer": each.pointer, "detail": each.detail} for each in error.errors],
        task_id=error.task_id,
    )
