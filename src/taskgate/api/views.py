"""Tasks as the API shows them. JSON columns go from the database to the client unparsed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType


class TaskView(msgspec.Struct, kw_only=True):
    """One task, as `GET /tasks/{task_id}` shows it."""

    task_id: str
    status: str
    result: Raw | None = None
    error: str | None = None
    error_code: str | None = None
    error_info: Raw | None = None
    task_type: str | None = None
    priority: int | None = None
    attempts: int = 0
    max_attempts: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    run_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False
    progress: Raw | None = None
    metadata: Raw | None = None
    request: Raw | UnsetType | None = UNSET
    history: list[AttemptView] | UnsetType = UNSET


class AttemptView(msgspec.Struct, kw_only=True):
    """One attempt of a task's history."""

    attempt: int | None
    outcome: str | None
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    error_code: str | None
    error_info: Raw | None
    progress: Raw | None
    seconds: float | None
    """How long it ran."""
    upstream: str
    model: str
    usage: Raw | None
    """Tokens, or seconds of video, as the provider counted them."""
    answer: Raw | None
    """What the provider answered beside the text."""
    submitted_at: datetime | None
    """When a paid call was about to be sent."""
    operation: Raw | None
    """The provider's operation."""


class ListedTask(msgspec.Struct, kw_only=True):
    """One task of a list, without its bodies unless they were asked for."""

    task_id: str
    status: str
    task_type: str | None
    error: str | None
    error_code: str | None
    attempts: int
    priority: int
    tenant: str
    created_at: datetime
    updated_at: datetime
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    request: Raw | UnsetType | None = UNSET
    result: Raw | UnsetType | None = UNSET


class Page(msgspec.Struct):
    """Tasks, newest first."""

    items: list[ListedTask]
    next_cursor: str | None
    """For `cursor` of the next page; None when this is the last one."""


class Submitted(msgspec.Struct):
    """A task that is committed to disk."""

    task_id: str
    status: str


class Verdict(msgspec.Struct):
    """What became of a cancel or retry."""

    task_id: str
    status: str
    outcome: str


class GroupLimit(msgspec.Struct):
    """The limit of one type, model, upstream or tenant; name `*`: of each one that has none of its own."""

    scope: str
    name: str
    max_concurrent: int | None
    running: int
    requests_per_minute: float | None
    requests_burst: float | None
    requests_left: float | None
    tokens_per_minute: float | None
    tokens_burst: float | None
    tokens_left: float | None


class Cooldown(msgspec.Struct):
    """Nothing of this type, or through this upstream, starts for so many seconds."""

    scope: str
    name: str
    seconds: float
    reason: str | None


class Limits(msgspec.Struct):
    """What holds for the whole fleet; durations are seconds. Other tenants' limits are shown to admins only."""

    max_concurrent: int
    running: int
    max_attempts: int
    max_throttle_seconds: float
    result_ttl_seconds: float
    ageing_seconds: float
    groups: list[GroupLimit]
    cooldowns: list[Cooldown]


class TypeCount(msgspec.Struct):
    task_type: str | None
    status: str
    tasks: int


class Stats(msgspec.Struct):
    """The queue now, as the caller may see it. Finished tasks are not counted."""

    limit: int
    running: int
    pending: int
    delayed: int
    oldest_pending_seconds: float | None
    workers: int
    slots: int
    by_type: list[TypeCount]


class WorkerView(msgspec.Struct):
    worker_id: str
    language: str
    version: str
    host: str
    pid: int
    slots: int
    busy: int
    draining: bool
    types: list[str] | None
    started_at: datetime
    seen_at: datetime
    silent_seconds: float


class WorkerList(msgspec.Struct):
    """Workers seen within a day, the last seen first."""

    items: list[WorkerView]


class TypeView(msgspec.Struct):
    name: str
    description: str
    request_schema: dict[str, Any] | None
    registered_at: datetime | None
    updated_at: datetime | None


class TypeList(msgspec.Struct):
    """The registered task types."""

    items: list[TypeView]


def _raw(text: str | None) -> Raw | None:
    return None if text is None else Raw(text)


def task_view(row: Any, *, with_request: bool = False, history: list[Any] | None = None) -> TaskView:
    return TaskView(
        task_id=row["task_id"],
        status=row["status"],
        result=_raw(row["result"]),
        error=row["error"],
        error_code=row["error_code"],
        error_info=_raw(row["error_info"]),
        task_type=row["task_type"],
        priority=row["priority"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        run_at=_finite(row["run_at"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        expires_at=_finite(row["expires_at"]),
        cancel_requested=row["cancel_requested_at"] is not None,
        progress=_raw(row["progress"]),
        metadata=_raw(row["metadata"]),
        request=_raw(row["request"]) if with_request else UNSET,
        history=UNSET if history is None else [_attempt(each) for each in history],
    )


def _finite(value: datetime | None) -> datetime | None:
    """PostgreSQL's infinity comes as a time without a zone: shown as none."""
    return value if value is None or value.tzinfo is not None else None


def _attempt(row: Any) -> AttemptView:
    return AttemptView(
        attempt=row["attempt"],
        outcome=row["outcome"],
        worker_id=row["worker_id"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        error_code=row["error_code"],
        error_info=_raw(row["error_info"]),
        progress=_raw(row["progress"]),
        seconds=row["seconds"],
        upstream=row["upstream"],
        model=row["model"],
        usage=_raw(row["usage"]),
        answer=_raw(row["answer"]),
        submitted_at=row["submit_intent_at"],
        operation=_raw(row["operation"]),
    )


def listed_task(row: Any, included: set[str]) -> ListedTask:
    return ListedTask(
        task_id=row["task_id"],
        status=row["status"],
        task_type=row["task_type"],
        error=row["error"],
        error_code=row["error_code"],
        attempts=row["attempts"],
        priority=row["priority"],
        tenant=row["tenant"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        run_at=_finite(row["run_at"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        request=_raw(row["request"]) if "request" in included else UNSET,
        result=_raw(row["result"]) if "result" in included else UNSET,
    )


_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """An answer's JSON. It ends its line, so that what is shown next in a terminal begins one."""
    return _encode(value) + b"\n"


def not_found_body(task_id: str) -> bytes:
    """The shape of a task, for an id that is not there (or not the caller's)."""
    return encode(TaskView(task_id=task_id, status="not_found"))
