"""One attempt at one task: what the worker knows of it, and what the handler is lent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from taskgate.protocol.calls import Calls, ClaimedTask, Failure, Release
from taskgate.task import EndedCancelled, Handler, LeaseLost
from taskgate.worker.clock import now
from taskgate.worker.link import TROUBLE, Backoff
from taskgate.worker.results import to_json

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task, TimerHandle

    from taskgate.media.upload import MediaStore, Upload

T = TypeVar("T")

Settlement = str | Failure | Release
"""How an attempt ends in the database: a result as JSON text, a failure, or given back."""


class Run:
    """From claim to settlement. The event loop's thread owns it; the lease keeper's thread reads it, moves
    `lease_until` and sets `reason`, `gone` and (of one that never began) `ended`, each in one assignment.
    """

    __slots__ = (
        "calls",
        "claimed",
        "ended",
        "gone",
        "handler",
        "hold_until",
        "is_async",
        "lease_until",
        "loop",
        "media",
        "parse",
        "pause",
        "reason",
        "refused",
        "renewed_at",
        "settled",
        "settlement",
        "started",
        "task",
        "timeout",
        "timer",
    )

    def __init__(
        self,
        claimed: ClaimedTask,
        handler: Handler,
        is_async: bool,
        parse: Callable[[Any], Any] | None,
        timeout: float,
        sent: float,
        lease: float,
        calls: Calls,
        loop: AbstractEventLoop,
        media: MediaStore | None = None,
    ) -> None:
        self.claimed = claimed
        self.handler = handler
        self.is_async = is_async
        self.parse = parse
        self.timeout = timeout
        self.renewed_at = sent
        self.lease_until = sent + lease
        """By clock.now, counted from when the claim or renewal was sent: never later than the database's own."""
        self.calls = calls
        self.loop = loop
        self.media = media
        self.started = 0.0
        self.reason: str | None = None
        """Why the handler was told to stop: cancelled, timeout, lease_lost, shutdown."""
        self.ended = False
        """The handler has returned."""
        self.gone = False
        """The task is not ours any more (stale)."""
        self.settlement: Settlement | None = None
        self.settled = False
        """The settlement is in the database, or was refused by it."""
        self.pause = 0.0
        """Seconds to the next try of a settlement that could not be written because somebody holds its row."""
        self.refused = False
        """The database did not take the settlement's value: a plain failure stands in for it."""
        self.hold_until = 0.0
        """By clock.now: until then the token counts as held although nothing more is to be written."""
        self.task: Task[None] | None = None
        self.timer: TimerHandle | None = None

    @property
    def task_id(self) -> str:
        return self.claimed.task_id

    @property
    def token(self) -> int:
        return self.claimed.token

    @property
    def seconds(self) -> float:
        """How long the handler has been at it."""
        return round(now() - self.started, 3) if self.started else 0.0

    def log_fields(self) -> dict[str, Any]:
        return {"task_id": self.claimed.task_id, "task_type": self.claimed.task_type, "token": self.claimed.token}

    def request(self) -> Any:
        """The request, as the handler's own type. Raises PermanentError with code `invalid_request`."""
        value = json.loads(self.claimed.request)
        return value if self.parse is None else self.parse(value)

    # what the handler is lent: taskgate.task.TaskContext

    @property
    def cancel_reason(self) -> str | None:
        return self.reason

    async def save_checkpoint(self, value: Any) -> None:
        await self._save(checkpoint=to_json(value)[0])

    async def report_progress(self, value: Any) -> None:
        await self._save(progress=to_json(value)[0])

    async def open_media(self, name: str, mime: str) -> Upload:
        if self.media is None:
            raise RuntimeError("this worker has no media store")
        return await self.media.begin(self, name, mime)

    async def intend(self, account: Any, *, retry: bool) -> None:
        text = to_json(account)[0]
        await self._written(lambda: self.calls.intend(self.claimed.task_id, self.claimed.token, text, retry=retry))

    async def save_operation(self, operation: Any) -> None:
        text = to_json(operation)[0]
        # also when the task is not ours any more: the handle of what was paid must not be lost with us
        await self._written(
            lambda: self.calls.save_operation(self.claimed.task_id, self.claimed.token, text), even_late=True
        )

    async def withdraw(self) -> None:
        # late as well: until it is recovered, the attempt would count as one of unknown fate
        await self._written(lambda: self.calls.withdraw(self.claimed.task_id, self.claimed.token), even_late=True)

    def run_blocking(self, coroutine: Awaitable[T]) -> T:
        """Await `coroutine` on the worker's loop, from a handler's thread."""
        return asyncio.run_coroutine_threadsafe(_as_coroutine(coroutine), self.loop).result()

    async def _save(self, *, checkpoint: str | None = None, progress: str | None = None) -> None:
        await self._written(
            lambda: self.calls.checkpoint(
                self.claimed.task_id, self.claimed.token, checkpoint=checkpoint, progress=progress
            )
        )

    async def _written(self, call: Callable[[], Awaitable[str]], *, even_late: bool = False) -> None:
        """Tries again while the lease is kept. Raises LeaseLost, or what the database says of the value."""
        answer = await self.kept(call, even_late=even_late)
        if answer == "cancelled":
            raise EndedCancelled(f"task {self.claimed.task_id} was cancelled, and has ended")
        if answer == "stale":
            raise LeaseLost(f"task {self.claimed.task_id} is no longer this worker's")

    async def kept(self, call: Callable[[], Awaitable[T]], *, even_late: bool = False) -> T:
        """The answer of a call that is safe to repeat: again while the database is in trouble, or somebody holds the
        row (`busy`), as long as the lease is kept. Raises LeaseLost after that, or never if `even_late`.
        """
        backoff = Backoff(0.05, 1.0)
        while True:
            if (self.gone or self.settled) and not even_late:
                raise LeaseLost(f"task {self.claimed.task_id} is no longer this worker's")
            try:
                answer = await call()
                if answer != "busy":
                    return answer
            except TROUBLE:
                if now() > self.lease_until and not even_late:
                    raise LeaseLost(f"the lease of task {self.claimed.task_id} could not be kept") from None
            await asyncio.sleep(backoff.next())


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
