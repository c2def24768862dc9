"""What goes into the calls and what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)  # not frozen: that would triple what it costs to make one
class NewTask:
    """One task to enqueue. `request` is JSON text; `keep_order` keeps its key order, which jsonb would lose.

    `options` is JSON text of an object: priority, delay_seconds, run_at, start_within_seconds, timeout_seconds,
    max_attempts, metadata; and tenant and traceparent, which go before those of the call.
    """

    task_id: str
    task_type: str
    request: str
    keep_order: bool = False
    options: str | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an idempotency key stands for: `fresh` (yours from now on), `replayed` or `mismatch`."""

    outcome: str
    task_ids: list[str]
    statuses: list[str]
    """Of a replayed key's tasks, as they are now; `not_found` where one was purged."""


@dataclass(slots=True)  # not frozen: that would cost more than all else that is made of a row
class ClaimedTask:
    """A task that this worker holds from now on, under `token`."""

    task_id: str
    token: int
    task_type: str
    request: str
    """JSON text, in the caller's key order."""
    attempt: int
    max_attempts: int
    timeout_seconds: float | None
    tenant: str
    metadata: str | None
    checkpoint: str | None
    traceparent: str | None
    waited_seconds: float
    """From when the task was due to this claim."""
    again: bool
    """True when an earlier claim's answer was lost and this is the same claim once more."""
    upstream: str = ""
    """The name of the upstream that it goes to; empty: the worker's own environment says where."""
    model: str = ""
    paid: str | None = None
    """JSON text of the last attempt that sent a paid call: intent_at, operation, account, token."""


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """Tasks, or why there are none: `busy`, `full`, `limited`, `empty` or `unsure` (see functions/claim.sql)."""

    outcome: str
    tasks: list[ClaimedTask]
    next_due: float | None
    """Seconds until the next delayed task falls due or a limit lets one through, where known."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed. `delay` None means backoff; `info` is JSON text."""

    task_id: str
    token: int
    error: str
    code: str
    info: str | None = None
    retry: bool = False
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """An attempt given back without cost. Code `throttled` counts against the throttle budget."""

    task_id: str
    token: int
    delay: float = 0.0
    code: str = "released"
    reason: str | None = None
    info: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker tells of itself. `types` maps a task type to (JSON Schema text or None, description)."""

    worker_id: str
    language: str
    version: str
    host: str
    pid: int
    slots: int
    types: dict[str, tuple[str | None, str]]


INLINE_BYTES = 65_536
"""Bodies that a claim sends while it holds the lock: what fits the buffers of a socket nobody reads from."""

Verdicts = dict[tuple[str, int], str]
"""(task_id, token) → `done`, `already`, `stale` or, for a renewal, `cancel` or `busy`."""
