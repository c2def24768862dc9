"""The mixed fleet: workers of every kind on one queue, under random SIGKILL and SIGTERM."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from conformance.workers.cases import Case, TaskIn
from conformance.workers.citizen import SQL_ONLY
from conformance.workers.expect import ended
from conformance.workers.fleet import Process
from conformance.workers.polling import NotAsExpected, until
from conformance.workers.world import Databases, World, world

LIMIT = 6
SLOTS = 3
LEASE = 4
LATENCY, JITTER = 0.15, 0.35
BACKLOG = 40
"""There is always so much to do, until the time is up."""
PAUSE = (0.3, 1.2)
"""Seconds between two signals."""
CLOSING_SECONDS = 0.1
"""A call that its worker stopped may be seen as open by the provider for so long after the worker let go of it."""


@dataclass
class SoakResult:
    """What was seen. `wrong` is empty when all went well."""

    tasks: int = 0
    seconds: float = 0.0
    signals: Counter[str] = field(default_factory=Counter)
    most_at_once: int = 0
    calls: int = 0
    attempts: int = 0
    wrong: list[str] = field(default_factory=list)


class Soak:
    """`commands`: one process each; SQL-only workers come on top."""

    def __init__(self, commands: Sequence[str], seconds: float, *, sql_only: int = 1, seed: int | None = None) -> None:
        self._commands = [*commands, *[SQL_ONLY] * sql_only]
        self._seconds = seconds
        self._random = random.Random(seed)
        self._result = SoakResult()

    async def run(self, databases: Databases) -> SoakResult:
        """Never raises for what the workers do."""
        settings: dict[str, str | int | float] = {
            "MAX_CONCURRENT_TASKS": LIMIT,
            "TASKGATE_MAX_ATTEMPTS": 1000,  # being killed must not use them up
            "TASKGATE_SLOTS": SLOTS,
            "TASKGATE_LEASE_SECONDS": LEASE,
            "TASKGATE_GRACE_SECONDS": 0.2,  # some calls finish within it, some are given back
        }
        case = Case("mixed fleet", "soak", [], {}, settings=settings)
        async with world(case, self._commands[0], databases) as here:
            await here.store.configure(settings)
            here.provider.chooser.set_faults({"latency": LATENCY, "jitter": JITTER})
            fleet = [(command, here.start_worker(command=command)) for command in self._commands]
            await self._trouble(here, fleet)
            try:
                await until(self._all_over(here))
            except NotAsExpected as error:
                self._result.wrong.append(f"lost: {error}")
            self._judge(here, await here.store.rows())
            if self._result.wrong:
                self._result.wrong += [process.last_words(5) for _, process in fleet]
        return self._result

    async def _trouble(self, here: World, fleet: list[tuple[str, Process]]) -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < self._seconds:
            await self._feed(here)
            await asyncio.sleep(self._random.uniform(*PAUSE))
            place = self._random.randrange(len(fleet))
            command, process = fleet[place]
            if process.exit_code() is not None:
                self._result.wrong.append(f"{command} ended by itself with exit code {process.exit_code()}")
            name = "SIGTERM" if self._result.signals.total() % 2 else "SIGKILL"
            process.send(name)
            self._result.signals[name] += 1
            try:
                await until(self._gone(process))
            except NotAsExpected as error:
                self._result.wrong.append(f"{command} after {name}: {error}")
                await process.end()
            fleet[place] = (command, here.start_worker(command=command))
        self._result.seconds = time.monotonic() - begun

    def _gone(self, process: Process) -> Any:
        async def gone() -> str | None:
            return None if process.exit_code() is not None else "it has not ended"

        return gone

    def _all_over(self, here: World) -> Any:
        async def over() -> str | None:
            return ended(await here.store.rows())

        return over

    async def _feed(self, here: World) -> None:
        rows = await here.store.rows()
        waiting = sum(row["status"] == "pending" for row in rows.values())
        names = [f"task-{number:06}" for number in range(self._result.tasks, self._result.tasks + BACKLOG - waiting)]
        await here.store.enqueue([TaskIn(name) for name in names], "")
        self._result.tasks += len(names)

    def _judge(self, here: World, rows: dict[str, dict[str, Any]]) -> None:
        result, calls = self._result, here.provider.journal.log()
        result.calls, result.attempts = len(calls), sum(row["attempts"] for row in rows.values())
        if len(rows) != result.tasks:
            result.wrong.append(f"{result.tasks} tasks were enqueued, {len(rows)} are there")
        for name, row in rows.items():
            answer = (row["result"] or {}).get("text", "")
            if row["status"] != "completed" or f"This is {name}." not in answer:
                result.wrong.append(f"{name}: {row['status']}, error {row['error']!r}, result {row['result']!r}")
        result.most_at_once = _most_at_once(calls)
        if result.most_at_once > LIMIT:
            result.wrong.append(f"{result.most_at_once} calls at once at the provider; the limit is {LIMIT}")
        if result.most_at_once < LIMIT:
            result.wrong.append(f"never more than {result.most_at_once} calls at once: the limit {LIMIT} was not used")
        result.wrong += _overlaps(calls)


def _end(call: dict[str, Any]) -> float:
    """When a call ended, as its worker saw it at the latest."""
    if call["time_out"] is None:
        return float("inf")
    if call["closed_by_client"]:
        return max(float(call["time_in"]), float(call["time_out"]) - CLOSING_SECONDS)
    return float(call["time_out"])


def _most_at_once(calls: list[dict[str, Any]]) -> int:
    events = sorted([(call["time_in"], 1) for call in calls] + [(_end(call), -1) for call in calls])
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def _overlaps(calls: list[dict[str, Any]]) -> list[str]:
    """Tasks that two live workers ran at once."""
    of_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        of_task[call["prompt"]].append(call)
    return [
        f"{prompt}: a second call {_end(first) - second['time_in']:.3f} s before the end of the first"
        for prompt, own in of_task.items()
        for first, second in pairwise(own)
        if second["time_in"] < _end(first)
    ]


def report(result: SoakResult) -> str:
    """The closing lines."""
    signals = ", ".join(f"{count} {name}" for name, count in sorted(result.signals.items()))
    lines = [
        f"mixed fleet: {result.tasks} tasks, {result.calls} calls, {result.attempts} attempts in "
        f"{result.seconds:.0f} s; {signals}; at most {result.most_at_once} calls at once, limit {LIMIT}",
        *result.wrong,
        f"{len(result.wrong)} problems",
    ]
    return "\n".join(lines)
