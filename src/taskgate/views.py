"""What the API tells a producer about tasks, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from taskgate.errors import TaskFailed

FINAL = frozenset({"completed", "failed"})


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task that was accepted: committed to disk, waiting for a worker."""

    task_id: str
    status: str = "pending"


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as GET /tasks/{task_id} shows it. Times carry their offset; absent ones are None."""

    task_id: str
    status: str
    """pending, running, completed or failed."""
    task_type: str | None = None
    result: Any = None
    error: str | None = None
    error_code: str | None = None
    attempts: int = 0
    max_attempts: int | None = None
    priority: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    run_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    progress: Any = None
    request: Any = None
    """With include=("request",)."""
    history: tuple[Mapping[str, Any], ...] = ()
    """The attempts, first to last; with include=("history",)."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Everything the API answered."""

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    def raise_if_failed(self) -> TaskView:
        """This view again; raises TaskFailed when the task ended `failed`."""
        if self.status == "failed":
            raise TaskFailed(self)
        return self

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> TaskView:
        """Raises ValueError or KeyError for a body that is no task."""
        return cls(
            task_id=str(body["task_id"]),
            status=str(body["status"]),
            task_type=body.get("task_type"),
            result=body.get("result"),
            error=body.get("error"),
            error_code=body.get("error_code"),
            attempts=body.get("attempts") or 0,
            max_attempts=body.get("max_attempts"),
            priority=body.get("priority"),
            created_at=_time(body.get("created_at")),
            updated_at=_time(body.get("updated_at")),
            run_at=_time(body.get("run_at")),
            started_at=_time(body.get("started_at")),
            finished_at=_time(body.get("finished_at")),
            expires_at=_time(body.get("expires_at")),
            metadata=body.get("metadata"),
            progress=body.get("progress"),
            request=body.get("request"),
            history=tuple(body.get("history") or ()),
            raw=body,
        )


@dataclass(frozen=True, slots=True)
class Page:
    """One page of GET /tasks, newest first; `next_cursor` is None on the last."""

    items: tuple[TaskView, ...]
    next_cursor: str | None


def _time(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None
