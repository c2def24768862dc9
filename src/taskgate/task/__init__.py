"""What a task is to a handler: the task itself, the errors that steer it, and the registry of handlers."""

from __future__ import annotations

from taskgate.task.context import TaskContext
from taskgate.task.errors import (
    EndedCancelled,
    LeaseLost,
    PermanentError,
    Retry,
    Snooze,
    TaskError,
    Throttled,
    check_pause,
)
from taskgate.task.media import MEDIA_NAME, MEDIA_TYPE, MediaRef, MediaUpload
from taskgate.task.registry import Handler, Handlers, check_task_type, default_handlers, handler
from taskgate.task.task import Paid, Task, Upstream

__all__ = [
    "MEDIA_NAME",
    "MEDIA_TYPE",
    "EndedCancelled",
    "Handler",
    "Handlers",
    "LeaseLost",
    "MediaRef",
    "MediaUpload",
    "Paid",
    "PermanentError",
    "Retry",
    "Snooze",
    "Task",
    "TaskContext",
    "TaskError",
    "Throttled",
    "Upstream",
    "check_pause",
    "check_task_type",
    "default_handlers",
    "handler",
]
