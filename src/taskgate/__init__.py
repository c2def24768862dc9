"""taskgate: a task service for slow LLM and multimodal calls, on PostgreSQL alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskgate.task import Handlers, PermanentError, Retry, Snooze, Task, Throttled, handler

if TYPE_CHECKING:
    from taskgate.async_client import AsyncClient
    from taskgate.client import Client
    from taskgate.enqueuing import enqueue
    from taskgate.errors import TaskgateError

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Handlers",
    "PermanentError",
    "Retry",
    "Snooze",
    "Task",
    "TaskgateError",
    "Throttled",
    "enqueue",
    "handler",
]

# Imported when first used: a worker needs no HTTP client, a producer may need nothing else.
_LATER = {
    "AsyncClient": "taskgate.async_client",
    "Client": "taskgate.client",
    "TaskgateError": "taskgate.errors",
    "enqueue": "taskgate.enqueuing",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value
