"""Shows what happens to tasks as it happens: one short line for each change of state."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from taskgate.local.service import Say
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import DATABASE_ERRORS, Database, connect

TICK_SECONDS = 0.4
PAGE = 200
FOLLOWED = 2000  # unfinished tasks whose changes are looked up
SINGLE_LINES = 12  # more changes than that in one tick are summed up
COUNT_SECONDS = 3.0
FINAL = frozenset({"completed", "failed"})


@dataclass(frozen=True)
class Change:
    """A task that is in another state than when we looked last."""

    row: Any
    before: str | None


class Tracker:
    """Finds the changes between one look at the table and the next."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._open: dict[str, tuple[str, int]] = {}
        self._newest: int | None = None

    async def changes(self) -> list[Change]:
        """What changed since the last call; nothing at the first."""
        first, newest = self._newest is None, self._newest or 0
        page = await self._calls.page(limit=PAGE)
        while not first and page and len(page) % PAGE == 0 and len(page) < FOLLOWED and page[-1]["seq"] > newest:
            page += await self._calls.page(limit=PAGE, below=page[-1]["seq"])
        self._newest = max([newest, *(row["seq"] for row in page)])
        known = list(self._open)
        found = await self._calls.get(known) if known else {}
        changes: list[Change] = []
        for task_id in known:
            row = found.get(task_id)
            if row is None:
                del self._open[task_id]
                continue
            state = (row["status"], row["attempts"])
            if state != self._open[task_id]:
                changes.append(Change(row, self._open[task_id][0]))
            self._follow(row)
        fresh = [row for row in reversed(page) if row["task_id"] not in self._open]
        fresh = [row for row in fresh if row["seq"] > newest or (first and row["status"] not in FINAL)]
        if not first:
            done = [row["task_id"] for row in fresh if row["status"] in FINAL]
            results = await self._calls.get(done) if done else {}
            changes.extend(Change(results.get(row["task_id"], row), None) for row in fresh)
        for row in fresh:
            self._follow(row)
        return changes

    def _follow(self, row: Any) -> None:
        if row["status"] in FINAL:
            self._open.pop(row["task_id"], None)
        elif row["task_id"] in self._open or len(self._open) < FOLLOWED:
            self._open[row["task_id"]] = (row["status"], row["attempts"])


def line(change: Change) -> str:
    """One change in words."""
    row = change.row
    start = f"{row['task_type']} {row['task_id']}"
    if row["status"] == "completed":
        return f"{start} completed{_took(row)}{_excerpt(row)}"
    if row["status"] == "failed":
        return f"{start} failed{_took(row)}: {_short(row['error'] or 'no reason given')}"
    if row["status"] == "running":
        attempt = f" (attempt {row['attempts']})" if row["attempts"] > 1 else ""
        return f"{start} running{attempt}"
    if change.before == "running":
        return f"{start} pending again"
    return f"{start} accepted"


def summary(changes: list[Change]) -> str:
    """Many changes in one line."""
    counts: Counter[str] = Counter()
    for change in changes:
        new = change.before is None and change.row["status"] == "pending"
        counts["accepted" if new else change.row["status"]] += 1
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def _took(row: Any) -> str:
    started, finished = row["started_at"], row["finished_at"]
    if not isinstance(started, datetime) or not isinstance(finished, datetime):
        return ""
    return f" in {(finished - started).total_seconds():.1f} s"


def _excerpt(row: Any) -> str:
    try:
        text = json.loads(row["result"] or "null")["text"]
    except (KeyError, TypeError, ValueError):
        return ""
    return f": {_short(text)}" if isinstance(text, str) else ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 90 else text[:89] + "…"


def count_running(database: Database) -> int | None:
    """How many tasks run; None when the database does not say so soon."""

    async def ask() -> int:
        connection = await connect(database, "taskgate up", command_timeout=COUNT_SECONDS)
        try:
            return int((await Calls(connection, database.schema).stats())["running"])
        finally:
            connection.terminate()

    try:
        return asyncio.run(asyncio.wait_for(ask(), COUNT_SECONDS))
    except (*DATABASE_ERRORS, asyncpg.PostgresError):
        return None


class Feed:
    """Runs in a thread of its own, so that nothing of it can hold up the supervisor."""

    def __init__(self, database: Database, say: Say) -> None:
        self._database = database
        self._say = say
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                connection = await connect(self._database, "taskgate up", command_timeout=10)
            except DATABASE_ERRORS:
                await asyncio.sleep(1)  # who restarts the database says so
                continue
            try:
                await self._follow(Tracker(Calls(connection, self._database.schema)))
            except DATABASE_ERRORS:
                continue
            finally:
                connection.terminate()

    async def _follow(self, tracker: Tracker) -> None:
        while not self._stopping.is_set():
            changes = await tracker.changes()
            if len(changes) > SINGLE_LINES:
                self._say(summary(changes))
            else:
                for change in changes:
                    self._say(line(change))
            await asyncio.sleep(TICK_SECONDS)
