"""What a task is to a handler: the task itself, the errors that steer it, and the registry of handlers."""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Protocol, TypedDict, TypeVar

R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MEDIA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MEDIA_TYPE = re.compile(r"(?=.{3,100}\Z)[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*")


class TaskError(Exception):
    """Base of the errors a handler raises on purpose.

    `code` is a stable short string for machines, `info` any JSON value kept with the attempt
    (for example the provider's own answer).
    """

    code = "handler_error"

    def __init__(self, message: str, *, code: str | None = None, info: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.info = info


class Retry(TaskError):
    """This attempt failed; try again while attempts are left.

    `after` is the delay in seconds (or a timedelta); None means exponential backoff with jitter.
    """

    def __init__(
        self,
        message: str = "retry",
        *,
        after: float | timedelta | None = None,
        code: str | None = None,
        info: Any = None,
    ) -> None:
        super().__init__(message, code=code, info=info)
        self.after = _seconds(after)


class Snooze(TaskError):
    """Not now: give the task back for `after` seconds, 0.1 at least. Costs no attempt.

    Raises TypeError or ValueError for an `after` that is no number or negative: a failed attempt, if not caught.
    """

    code = "snoozed"

    def __init__(
        self,
        message: str = "snoozed",
        *,
        after: float | timedelta,
        code: str | None = None,
        info: Any = None,
    ) -> None:
        super().__init__(message, code=code, info=info)
        self.after: float = check_pause(after)


class Throttled(Snooze):
    """A provider said "too many": like Snooze, but bounded in all by TASKGATE_MAX_THROTTLE_SECONDS."""

    code = "throttled"


class PermanentError(TaskError):
    """The task can never succeed as it stands: it ends `failed` at once."""

    code = "permanent"


def check_pause(after: object) -> float:
    """A snooze's seconds. Raises TypeError or ValueError: what says not when would come again at once, for ever."""
    value = after.total_seconds() if isinstance(after, timedelta) else after
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"a snooze needs after=SECONDS or a timedelta, not {type(after).__name__}") from None
    if not seconds >= 0:  # NaN too
        raise ValueError(f"a snooze needs after=SECONDS of 0 or more, not {seconds}")
    return seconds


def _seconds(after: float | timedelta | None) -> float | None:
    return after.total_seconds() if isinstance(after, timedelta) else after


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


class MediaRef(TypedDict):
    """What a result says of a stored medium."""

    sha256: str
    """In hex."""
    bytes: int
    mime: str
    url: str
    """Its path in the API: /tasks/{task_id}/media/{name}."""


class MediaUpload(Protocol):
    """A medium on its way into the store."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> MediaRef: ...

    async def abort(self) -> None: ...


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

        An object with a key `closed` is over: nobody resumes it. Raises LeaseLost; the handle is noted all the same.
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


class LeaseLost(Exception):
    """The task was recovered or taken by somebody else; nothing this attempt writes counts any more."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler: its task type, its function and the schema of its request."""

    name: str
    function: Callable[..., Any]
    request_type: Any
    """The X of `Task[X]`, or Any when the signature names none."""
    timeout: float | None = None
    """Seconds an attempt may take, None for TASKGATE_TIMEOUT_SECONDS."""

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def description(self) -> str:
        return inspect.getdoc(self.function) or ""

    def request_schema(self) -> dict[str, Any] | None:
        """JSON Schema of the request, None when anything goes."""
        if self.request_type is Any:
            return None
        from pydantic import TypeAdapter

        return TypeAdapter(self.request_type).json_schema()

    def parse(self, request: Any) -> Any:
        """The request as the handler's own type. Raises PermanentError with code `invalid_request`."""
        if self.request_type is Any:
            return request
        from pydantic import ValidationError

        try:
            return _adapter(self).validate_python(request)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            raise PermanentError(
                f"the request does not fit the handler: {problems[0]['msg']}",
                code="invalid_request",
                info={"errors": [{"loc": list(p["loc"]), "msg": p["msg"]} for p in problems]},
            ) from error


_adapters: dict[int, tuple[Handler, Any]] = {}


def _adapter(handler: Handler) -> Any:
    """The pydantic TypeAdapter of a handler's request: dear to build, so built once, and only when first needed."""
    known = _adapters.get(id(handler))
    if known is None or known[0] is not handler:
        from pydantic import TypeAdapter

        known = _adapters[id(handler)] = (handler, TypeAdapter(handler.request_type))
    return known[1]


class Handlers:
    """A registry of handlers, by task type."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def handler(self, name: str, *, timeout: float | None = None) -> Callable[[F], F]:
        """Register the decorated function for task type `name`.

        Raises ValueError for a name that is empty, longer than 100 characters, not of
        `[a-z0-9_.-]`, or registered already.
        """

        def decorate(function: F) -> F:
            self.add(Handler(name, function, _request_type(function), timeout))
            return function

        return decorate

    def add(self, handler: Handler) -> None:
        check_task_type(handler.name)
        if handler.name in self._handlers:
            raise ValueError(f"a handler for {handler.name!r} is registered already")
        self._handlers[handler.name] = handler

    def merge(self, other: Handlers) -> None:
        """Take over the handlers of `other`; raises ValueError for a type that both have."""
        for each in other:
            self.add(each)

    def get(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def names(self) -> list[str]:
        return list(self._handlers)

    def __iter__(self) -> typing.Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)


def check_task_type(name: str) -> None:
    """Raises ValueError unless `name` can be a task type (and so a path segment)."""
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
    if not name or len(name) > 100 or not set(name) <= allowed or not name[0].isalnum():
        raise ValueError(f"{name!r} is no task type: use 1 to 100 of a-z 0-9 _ . - and begin with a letter or digit")


def _request_type(function: Callable[..., Any]) -> Any:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise ValueError(f"{function.__qualname__} must take the task as its first argument")
    try:
        hint = typing.get_type_hints(function, include_extras=True).get(parameters[0].name)
    except NameError as error:
        raise ValueError(f"the annotations of {function.__qualname__} cannot be resolved: {error}") from error
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Task and arguments and not isinstance(arguments[0], TypeVar):
        return arguments[0]
    return Any


default_handlers = Handlers()
"""The registry that the module-level `handler` decorator fills."""

handler = default_handlers.handler
