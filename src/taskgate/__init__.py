"""taskgate: a task service for slow LLM and multimodal calls, on PostgreSQL alone."""

from taskgate.task import Handlers, PermanentError, Retry, Snooze, Task, Throttled, handler

__version__ = "0.1.0"

__all__ = ["Handlers", "PermanentError", "Retry", "Snooze", "Task", "Throttled", "handler"]
