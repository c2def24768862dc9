"""A handler that does nothing: what is left is the service's own cost."""

from __future__ import annotations

from taskgate import Handlers, Task

handlers = Handlers()


@handlers.handler("noop")
async def noop(task: Task) -> None:
    """Nothing at all."""
