"""What every group of calls stands on: the connection, the name of the functions' schema, the read queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from taskgate.protocol.records import Verdicts
from taskgate.protocol.version import function_schema


class Executor(Protocol):
    """What a connection and a pool have in common."""

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...


class Session:
    """Calls of one installation (`schema` is where the tasks table lives) over one connection or pool."""

    def __init__(self, executor: Executor, schema: str = "public") -> None:
        self._db = executor
        self._f = function_schema(schema)


@cache
def query(name: str) -> str:
    return (files("taskgate.protocol") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def integers(values: Iterable[int]) -> str:
    """An array of them as a literal: asyncpg looks longer at each element of a list."""
    return f"{{{','.join(map(str, values))}}}"


def seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def interval(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def verdicts(rows: Sequence[Any]) -> Verdicts:
    return {(row[0], row[1]): row[2] for row in rows}


def server_settings(schema: str, application_name: str) -> dict[str, str]:
    """Session settings that the read queries and functions count on; for `asyncpg.connect(server_settings=…)`."""
    return {
        "search_path": f"{function_schema(schema)}, {schema}",
        "application_name": application_name,
        "jit": "off",
    }
