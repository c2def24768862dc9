"""Which function handles which type of task."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from taskgate.task.errors import PermanentError
from taskgate.task.task import Task

F = TypeVar("F", bound=Callable[..., Any])


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
