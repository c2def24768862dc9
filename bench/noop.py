"""Handlers that do nothing: what is left is the service's own cost."""

from __future__ import annotations

import time
from typing import Any

from taskgate import Handlers, Task

handlers = Handlers()


@handlers.handler("noop")
async def noop(task: Task[Any]) -> None:
    """Nothing at all."""


@handlers.handler("stamp")
async def stamp(task: Task[Any]) -> dict[str, int]:
    """The machine's clock at the handler's start, in nanoseconds since 1970."""
    return {"at": time.time_ns()}
