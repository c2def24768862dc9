"""The task types that the database knows, and the check of a request against its type."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg

from taskgate.api.options import NOT_BUILT
from taskgate.api.problems import Problem, database_unavailable, pointer
from taskgate.api.unknown_fields import field_hint
from taskgate.api.upstreams import Routing
from taskgate.handlers.video.request import VEO_REQUEST
from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import DATABASE_ERRORS
from taskgate.settings import Settings
from taskgate.task import check_task_type

log = get_logger("api")

FRESH_SECONDS = 5.0
MAX_ERRORS = 20

MISPLACED = frozenset(
    {
        "priority",
        "delay_seconds",
        "run_at",
        "start_within_seconds",
        "timeout_seconds",
        "max_attempts",
        "idempotency_key",
        "callback_url",
    }
)
"""Queue options that `llm` and `veo` refuse beside the prompt, where they would go to the provider. (Not metadata,
which is a parameter of Chat Completions.)"""
TYPE_NAMES = ("task_type", "type")
"""Fields that would say a task's type, which the path says."""
_NOT_COMMON = MISPLACED | {*TYPE_NAMES, "messages", "images", "n", "stream"}

Errors = list[tuple[str, str]]
Check = Callable[[dict[str, Any]], Errors]
"""Answers what is wrong with a request: pointer and detail each."""


@dataclass(frozen=True, slots=True)
class TaskType:
    name: str
    description: str
    schema: dict[str, Any] | None
    check: Check
    registered_at: Any = None
    updated_at: Any = None


def llm_errors(request: dict[str, Any]) -> Errors:
    """The common shape is told apart at once; anything else goes through the whole model."""
    prompt = request.get("prompt")
    if type(prompt) is str and prompt.strip() and not request.keys() & _NOT_COMMON:
        for name in ("model", "system"):
            value = request.get(name)
            if value is not None and (type(value) is not str or not value):
                break
        else:
            return []
    return misplaced(request, "llm") or _llm_model_errors(request)


def misplaced(request: dict[str, Any], type_name: str) -> Errors:
    """Queue options, and the task's type, at the top level of a body for the type `type_name`."""
    found = [(name, _placed(name)) for name in request if name in MISPLACED]
    found += [(name, _typed(request[name], type_name)) for name in TYPE_NAMES if name in request]
    return [(pointer((name,)), why) for name, why in found]


def _placed(name: str) -> str:
    return "is not built yet: leave it out" if name in NOT_BUILT else f'belongs in "taskgate": {{"{name}": …}}'


def _typed(value: Any, type_name: str) -> str:
    """What to do with a field that says the task's type."""
    if value == type_name:
        return f"is said by the path, which takes {type_name} tasks: leave it out"
    try:
        check_task_type(value if isinstance(value, str) else "")
    except ValueError:
        return "is no field of a request: the path says the type of a task, as in /tasks/veo"
    return f"is said by the path: post it to {'/tasks' if value == 'llm' else f'/tasks/{value}'}, without this field"


def veo_check() -> Check:
    by_schema = schema_check(VEO_REQUEST, "veo")
    return lambda request: misplaced(request, "veo") or by_schema(request)


def _llm_model_errors(request: dict[str, Any]) -> Errors:
    from pydantic import ValidationError

    from taskgate.handlers.llm_request import check

    try:
        check(request)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return [(pointer(each["loc"]), each["msg"]) for each in found[:MAX_ERRORS]]
    return []


def schema_check(schema: dict[str, Any] | None, name: str) -> Check:
    """A check by JSON Schema. A schema that cannot be used lets everything pass: the worker checks again."""
    if schema is None:
        return lambda request: []
    import jsonschema_rs

    def no_remote(uri: str) -> Any:
        raise ValueError(f"{uri} is not fetched: a request schema must be complete in itself")

    try:
        validator = jsonschema_rs.validator_for(schema, retriever=no_remote)
    except Exception as error:  # the library raises ValidationError, ReferencingError and ValueError
        log.warning("type_schema_unusable", task_type=name, error=str(error)[:500])
        return lambda request: []

    def check(request: dict[str, Any]) -> Errors:
        if validator.is_valid(request):
            return []
        errors: Errors = []
        for error in validator.iter_errors(request):
            hint = field_hint(schema, error)
            errors.append((pointer(error.instance_path), f"{error.message[:500]}{hint}"))
            if len(errors) == MAX_ERRORS:
                break
        return errors

    return check


def _built_in() -> dict[str, TaskType]:
    from taskgate.handlers.llm_request import json_schema

    return {
        "llm": TaskType("llm", "A chat completion.", json_schema(), llm_errors),
        "veo": TaskType("veo", "A video.", VEO_REQUEST, veo_check()),
    }


class TaskTypes:
    """Read from the database now and then, and at once for a name that is not known yet."""

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self._calls = calls
        self.routing = Routing(calls, settings)
        self._built_in = _built_in()
        self._known = dict(self._built_in)
        self._texts: dict[str, tuple[str | None, str]] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def cached(self, name: str) -> TaskType | None:
        """Without a look into the database, while what is known is fresh (the built-in ones always are)."""
        if name in self._built_in or time.monotonic() - self._read_at < FRESH_SECONDS:
            return self._known.get(name)
        return None

    async def get(self, name: str) -> TaskType:
        """Raises Problem 404 that lists the known types, 503 if an unknown one cannot be looked up."""
        found = self.cached(name)
        if found is not None:
            return found
        try:
            await self._refresh()
        except (*DATABASE_ERRORS, asyncpg.PostgresError):
            if name not in self._known:
                raise database_unavailable() from None
        if name not in self._known:
            names = ", ".join(sorted(self._known))
            raise Problem(
                404,
                "unknown_task_type",
                f"There is no task type {name[:100]!r}. Known are: {names}. "
                "A worker that has a handler for it registers it.",
                known_types=sorted(self._known),
            )
        return self._known[name]

    async def all(self) -> list[TaskType]:
        """Raises one of DATABASE_ERRORS or asyncpg.PostgresError."""
        await self._refresh()
        return [self._known[name] for name in sorted(self._known)]

    async def _refresh(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(lambda _: setattr(self, "_reading", None))
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        known = dict(self._built_in)
        texts: dict[str, tuple[str | None, str]] = {}
        for row in await self._calls.types():
            name = row["name"]
            texts[name] = (row["request_schema"], row["description"])
            times = {"registered_at": row["registered_at"], "updated_at": row["updated_at"]}
            if name in self._built_in:
                built_in = self._built_in[name]
                known[name] = TaskType(name, row["description"], built_in.schema, built_in.check, **times)
            elif self._texts.get(name) == texts[name] and name in self._known:
                known[name] = self._known[name]
            else:
                schema = json.loads(row["request_schema"]) if row["request_schema"] else None
                known[name] = TaskType(name, row["description"], schema, schema_check(schema, name), **times)
        self._known, self._texts, self._read_at = known, texts, time.monotonic()
