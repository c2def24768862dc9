"""A handler that does nothing: what is left is the service's own cost."""

from __future__ import annotations

from typing import Any

from taskgate import Handlers, Task

handlers = Handlers()


@handlers.handler("noop")
async def noop(task: Task[Any]) -> None:
    """Nothing at all."""
