"""What goes wrong, as RFC 9457 problem documents: a stable `code` for machines, a remedy for people."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

Header = tuple[bytes, bytes]

RETRY_SECONDS = 5


class Problem(Exception):
    """An answer that is not a success. `members` are further members of the document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Iterable[tuple[str, str]] = (),
        headers: Iterable[Header] = (),
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.errors = list(errors)
        self.headers = list(headers)
        self.members = members

    @property
    def body(self) -> bytes:
        document: dict[str, Any] = {
            "type": f"urn:taskgate:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "errors": [{"pointer": pointer, "detail": detail} for pointer, detail in self.errors],
            **self.members,
        }
        return msgspec.json.encode(document) + b"\n"

    @property
    def response_headers(self) -> list[Header]:
        return [(b"content-type", b"application/problem+json"), *self.headers]


def invalid(code: str, detail: str, pointer: str = "", *, status: int = 422, **members: Any) -> Problem:
    """A problem with one place in the body."""
    return Problem(status, code, detail, errors=[(pointer, detail)], **members)


def unavailable(code: str, detail: str, *, seconds: int = RETRY_SECONDS, **members: Any) -> Problem:
    """503: worth another try after `seconds`."""
    return Problem(503, code, detail, headers=[(b"retry-after", str(seconds).encode())], **members)


def database_unavailable(task_id: str | None = None) -> Problem:
    """The database does not answer. With `task_id`, an insert under way may or may not have been written."""
    if task_id is None:
        return unavailable("database_unavailable", "The database does not answer. Try again.")
    return unavailable(
        "database_unavailable",
        f"The database does not answer, so it is not known whether the task was written. "
        f"Ask GET /tasks/{task_id} before you send it again.",
        task_id=task_id,
    )


def escape(key: str | int) -> str:
    """A key as a JSON pointer's token (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def pointer(path: Iterable[str | int]) -> str:
    return "".join(f"/{escape(part)}" for part in path)
