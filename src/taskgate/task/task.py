"""The task itself, as a handler sees it, with what it may spend money on and where."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from taskgate.task.context import TaskContext
from taskgate.task.media import MEDIA_NAME, MEDIA_TYPE, MediaRef, MediaUpload

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Paid:
    """The last paid call that an attempt at this task announced: what there is to resume, or to be careful about."""

    account: Any
    """Who is charged, as it was given to `intend`."""
    operation: Any = None
    """The provider's handle, None when nobody knows what became of the call."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A named place where calls go. Keys are the worker's own: the table says only where to look for them."""

    name: str
    api: str
    """openai, gemini, vertex or interactions; empty for one that was removed while an operation there is open."""
    base_url: str = ""
    key_env: str = ""
    key_file: str = ""
    models: tuple[str, ...] = ()
    model: str = ""
    """For tasks that name none."""
    project: str = ""
    location: str = ""
    credentials_file: str = ""


@dataclass(slots=True)
class Task(Generic[R]):
    """One attempt at one task, as a handler sees it."""

    id: str
    type: str
    request: R
    attempt: int
    """1 for the first attempt; snoozes and releases do not count."""
    max_attempts: int
    timeout: float
    """Seconds this attempt may take in all."""
    token: int = 0
    """The fencing token of this claim."""
    tenant: str = ""
    metadata: dict[str, Any] | None = None
    checkpoint: Any = None
    """The last value given to `save_checkpoint` by any attempt, None at first."""
    traceparent: str | None = None
    upstream: Upstream | None = None
    """Where its calls go; None: the worker's own environment says."""
    paid: Paid | None = None
    """What earlier attempts announced with `intend` and did not take back."""
    context: TaskContext | None = field(default=None, repr=False)

    async def save_checkpoint(self, value: Any) -> None:
        """Keep a JSON value for the attempts that follow. Raises LeaseLost if the task is no longer ours."""
        if self.context is not None:
            await self.context.save_checkpoint(value)
        self.checkpoint = value

    async def report_progress(self, value: Any) -> None:
        """Show a JSON value (a fraction, a stage) as `progress` in GET /tasks/{id}."""
        if self.context is not None:
            await self.context.report_progress(value)

    async def intend(self, account: Any, *, retry: bool = False) -> None:
        """Say that a paid call is about to be sent, and at whose cost (any JSON value that holds no secret).

        Should this worker die before `save_operation` or `withdraw`, the task ends with `submit_ambiguous` instead
        of being paid twice; with `retry` it is tried again. Raises LeaseLost: then do not send.
        """
        if self.context is not None:
            await self.context.intend(account, retry=retry)
        self.paid = Paid(account)

    async def save_operation(self, operation: Any) -> None:
        """Save the provider's handle of the call that was accepted, for this attempt and those that follow (`paid`).

        An object with a key `closed` is over: nobody resumes it. Raises LeaseLost (EndedCancelled if the task was
        cancelled meanwhile, and nobody else will cancel the operation); the handle is noted all the same.
        """
        if self.context is not None:
            await self.context.save_operation(operation)
        self.paid = Paid(self.paid.account if self.paid is not None else None, operation)

    async def withdraw(self) -> None:
        """The call that `intend` announced surely was not taken: it may be sent again. Raises LeaseLost."""
        if self.context is not None:
            await self.context.withdraw()
        self.paid = None

    def save_checkpoint_sync(self, value: Any) -> None:
        """`save_checkpoint` for a handler that is a plain function (it runs in a thread)."""
        if self.context is not None:
            self.context.run_blocking(self.context.save_checkpoint(value))
        self.checkpoint = value

    def report_progress_sync(self, value: Any) -> None:
        """`report_progress` for a handler that is a plain function."""
        if self.context is not None:
            self.context.run_blocking(self.context.report_progress(value))

    async def store_media(self, name: str, chunks: bytes | AsyncIterable[bytes], mime: str) -> MediaRef:
        """Keep an image, a video or the like as long as the task; the answer belongs into the result.

        The bytes are passed on as they come, never held as a whole. `name` is 1 to 100 of A-Z a-z 0-9 . _ -, one a
        task: the same name again takes the place of the first. `mime` is like video/mp4. Raises ValueError for
        another name or type, LeaseLost if the task is no longer ours (nothing is kept), Retry with code
        `media_store`, PermanentError with code `media_too_large`, and whatever `chunks` raises.
        """
        upload = await self._open_media(name, mime)
        try:
            if isinstance(chunks, bytes | bytearray):
                await upload.write(chunks)
            else:
                async for chunk in chunks:
                    await upload.write(chunk)
            return await upload.finish()
        except BaseException:
            await upload.abort()
            raise

    def store_media_sync(self, name: str, chunks: bytes | Iterable[bytes], mime: str) -> MediaRef:
        """`store_media` for a handler that is a plain function; `chunks` is read in its own thread."""
        context = self._media_context()
        upload = context.run_blocking(self._open_media(name, mime))
        try:
            for chunk in [chunks] if isinstance(chunks, bytes | bytearray) else chunks:
                context.run_blocking(upload.write(chunk))
            return context.run_blocking(upload.finish())
        except BaseException:
            context.run_blocking(upload.abort())
            raise

    async def _open_media(self, name: str, mime: str) -> MediaUpload:
        if not MEDIA_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a medium: use 1 to 100 of A-Z a-z 0-9 . _ - (no dot first)")
        if not MEDIA_TYPE.fullmatch(mime):
            raise ValueError(f"{mime!r} is no media type: it is like video/mp4, in lower case, without parameters")
        return await self._media_context().open_media(name, mime)

    def _media_context(self) -> TaskContext:
        if self.context is None:
            raise RuntimeError("media are stored by a worker; taskgate.testing.run does it in memory")
        return self.context

    @property
    def cancel_reason(self) -> str | None:
        """None, or why this attempt should stop: `cancelled`, `timeout`, `lease_lost` or `shutdown`.

        An async handler is cancelled as well; a plain function has to look.
        """
        return self.context.cancel_reason if self.context is not None else None
