"""Worker processes for tests: started with a short lease, watched through their log, ended by their process id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, connect
from tests.programs import environment

ROOT = Path(__file__).resolve().parents[1]
LONG = 90.0  # seconds; a deadline for a busy machine, not a measure
T = TypeVar("T")


async def eventually(what: str, probe: Callable[[], Awaitable[T]], seconds: float = LONG, every: float = 0.05) -> T:
    """The first true answer of `probe`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := await probe()):
        assert time.monotonic() < deadline, f"in vain for {what}"
        await asyncio.sleep(every)
    return answer


class WorkerProcess:
    """`python -m taskgate.worker` with the handlers of tests/worker/app.py or the built-in ones; or another program."""

    def __init__(
        self,
        dsn: str,
        types: str,
        *,
        app: str | None = "tests.worker.app:handlers",
        program: str | None = None,
        **values: str,
    ) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="taskgate-worker-", suffix=".log")  # noqa: SIM115
        settings = {
            "DATABASE_URL": dsn,
            "TASKGATE_LOG_FORMAT": "json",
            "TASKGATE_LEASE_SECONDS": "3",
            "TASKGATE_SLOTS": "10",
            "TASKGATE_GRACE_SECONDS": "20",
            "NO_PROXY": "*",
        }
        apps = ["--app", app] if app else []
        command = [program] if program else [sys.executable, "-m", "taskgate.worker"]
        self.process = subprocess.Popen(
            [*command, *apps, "--types", types],
            env=environment(**(settings | values)),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines so far with this event."""
        found = []
        for line in Path(self._log.name).read_text(encoding="utf-8").splitlines():
            if line.startswith("{") and line.endswith("}") and (entry := json.loads(line)).get("event") == name:
                found.append(entry)
        return found

    def output(self) -> str:
        return Path(self._log.name).read_text(encoding="utf-8")

    async def event(self, name: str, count: int = 1, seconds: float = LONG) -> dict[str, Any]:
        """The `count`-th log line with this event, waited for; fails when the process ended without it."""

        async def probe() -> dict[str, Any] | None:
            ended = self.process.poll() is not None
            found = self.events(name)
            assert len(found) >= count or not ended, f"the worker ended without {name}:\n{self.output()}"
            return found[count - 1] if len(found) >= count else None

        got = await eventually(f"the event {name}", probe, seconds)
        assert got is not None
        return got

    def send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, number)

    async def ended(self, seconds: float = LONG) -> int:
        """The exit code, waited for."""

        async def probe() -> bool:
            return self.process.poll() is not None

        await eventually("the worker's end", probe, seconds)
        return int(self.process.returncode)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()


class Table:
    """A database as a test sees it: the calls, and plain SQL beside them."""

    def __init__(self, dsn: str, connection: Any) -> None:
        self.dsn = dsn
        self.sql = connection
        self.calls = Calls(connection)

    @classmethod
    async def open(cls, dsn: str) -> Table:
        return cls(dsn, await connect(Database(dsn), "test"))

    async def add(self, task_type: str, requests: list[Any], **options: Any) -> list[str]:
        """Enqueue one task a request; answers their ids."""
        text = json.dumps(options) if options else None
        ids = [f"{task_type}-{os.urandom(6).hex()}" for _ in requests]
        await self.calls.enqueue(
            [
                NewTask(task_id, task_type, json.dumps(request), options=text)
                for task_id, request in zip(ids, requests, strict=True)
            ]
        )
        return ids

    async def row(self, task_id: str) -> Any:
        return (await self.calls.get([task_id]))[task_id]

    async def final(self, ids: list[str], seconds: float = LONG) -> dict[str, Any]:
        """The rows, once all are final."""

        async def probe() -> dict[str, Any] | None:
            rows = await self.calls.get(ids)
            return rows if all(row["status"] in ("completed", "failed") for row in rows.values()) else None

        rows = await eventually(f"the end of {len(ids)} tasks", probe, seconds)
        assert rows is not None
        return rows

    async def running(self, task_id: str) -> Any:
        """The row, once it runs."""

        async def probe() -> Any:
            row = await self.row(task_id)
            return row if row["status"] == "running" else None

        return await eventually(f"task {task_id} to run", probe)

    async def most_at_once(self) -> int:
        """The highest number of attempts that ran at once, by the rows' own times; for first-try successes."""
        return int(
            await self.sql.fetchval(
                "SELECT max(n) FROM (SELECT sum(step) OVER (ORDER BY at, step) AS n FROM ("
                "SELECT started_at AS at, 1 AS step FROM tasks WHERE started_at IS NOT NULL"
                " UNION ALL SELECT finished_at, -1 FROM tasks WHERE finished_at IS NOT NULL) AS e) AS s"
            )
        )

    async def history(self, task_id: str) -> list[tuple[str, str | None]]:
        """(outcome, error_code) of each attempt."""
        return [(row["outcome"], row["error_code"]) for row in await self.calls.history(task_id)]
