"""The named upstreams as programs know them: read from the database now and then, and at once for an unknown name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from taskgate.task import PermanentError, Snooze, Upstream

FRESH_SECONDS = 60.0
AGAIN_SECONDS = 1.0
"""A name that was not there just now is not looked for again so soon."""


class UpstreamDirectory:
    """Reads records of queries/upstreams.sql by `read`."""

    def __init__(self, read: Callable[[], Awaitable[Iterable[Any]]]) -> None:
        self._read = read
        self._all: dict[str, Upstream] = {}
        self._disabled: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    @property
    def known(self) -> Mapping[str, Upstream]:
        """As they were when last read."""
        return self._all

    def pick(self, task_type: str, model: str | None) -> Upstream | None:
        """The upstream that the database gives a task which names none (functions/pick_upstream.sql)."""
        wanted = model or ""
        best: tuple[bool, int] | None = None
        found = None
        for upstream in self._all.values():  # by name
            if upstream.name in self._disabled or not serves(upstream.api, task_type):
                continue
            for pattern in upstream.models:
                exact = pattern == wanted
                if exact or (pattern.endswith("*") and wanted.startswith(pattern[:-1])):
                    rank = (exact, len(pattern))
                    if best is None or rank > best:
                        best, found = rank, upstream
        return found

    async def get(self, name: str) -> Upstream:
        """Raises PermanentError `unknown_upstream`, and Snooze while the database cannot be read."""
        age = time.monotonic() - self._read_at
        if name in self._all:
            if age > FRESH_SECONDS:
                self._start_reading()
            return self._all[name]
        if age > AGAIN_SECONDS:
            try:
                await self.refresh()
            except Exception as error:
                raise Snooze(f"the upstreams cannot be read: {error}", after=2.0, code="unknown_upstream") from error
        if name not in self._all:
            raise PermanentError(
                f"there is no upstream {name!r}: add it with `taskgate upstreams apply FILE`, then retry the task",
                code="unknown_upstream",
            )
        return self._all[name]

    async def refresh(self) -> None:
        """Read now. Raises what `read` raises."""
        await asyncio.shield(self._start_reading())

    def refresh_if_old(self) -> None:
        """Begin to read, in the background, what was read a minute ago."""
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            self._start_reading()

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_all())
            self._reading.add_done_callback(self._read_over)
        return self._reading

    def _read_over(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waits has it; what is known goes on being used

    async def _read_all(self) -> None:
        rows = sorted(await self._read(), key=lambda row: str(row["name"]))
        self._all = {row["name"]: of_row(row) for row in rows}
        self._disabled = frozenset(row["name"] for row in rows if not row["enabled"])
        self._read_at = time.monotonic()


def serves(api: str, task_type: str) -> bool:
    """Whether an upstream of this API can take tasks of this type; types of one's own may use any."""
    return {"llm": api == "openai", "veo": api != "openai"}.get(task_type, True)


def of_row(row: Mapping[str, Any]) -> Upstream:
    texts = ("name", "api", "base_url", "key_env", "key_file", "model", "project", "location", "credentials_file")
    return Upstream(**{name: row[name] for name in texts}, models=tuple(row["models"]))
