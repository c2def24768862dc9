"""What the worker lends a running task."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from taskgate.task.media import MediaUpload

T = TypeVar("T")


class TaskContext(Protocol):
    """What the worker lends a running task. `taskgate.testing` has one without a database."""

    async def save_checkpoint(self, value: Any) -> None: ...

    async def report_progress(self, value: Any) -> None: ...

    async def open_media(self, name: str, mime: str) -> MediaUpload: ...

    async def intend(self, account: Any, *, retry: bool) -> None: ...

    async def save_operation(self, operation: Any) -> None: ...

    async def withdraw(self) -> None: ...

    def run_blocking(self, coroutine: Awaitable[T]) -> T: ...

    @property
    def cancel_reason(self) -> str | None: ...
