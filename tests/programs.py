"""Starts the product's own programs for a test, and ends them by their process id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TASKGATE = str(Path(sys.executable).parent / "taskgate")
LONG = 60.0  # seconds; a deadline for a busy machine, not a measure
FOREIGN = ("TASKGATE_", "OPENAI_", "GEMINI_", "GOOGLE_", "PG")


def environment(**values: str) -> dict[str, str]:
    """This process's environment without settings of whoever runs the tests, plus `values`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in ("DATABASE_URL", "MAX_CONCURRENT_TASKS", "COLUMNS")
    }
    return {**kept, "NO_COLOR": "1", **values}


def until(what: str, probe: Callable[[], Any], seconds: float = LONG) -> Any:
    """The first true answer of `probe`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"in vain for {what}"
        time.sleep(0.05)
    return answer


class Program:
    """A running program of ours whose JSON log lines are read."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self._seen = threading.Condition()
        self.process = subprocess.Popen(
            list(arguments), env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._seen:
                self.lines.append(line.rstrip())
                self._seen.notify_all()
        with self._seen:
            self._seen.notify_all()

    def event(self, name: str) -> dict[str, Any]:
        """The first log line with this event, waited for; fails when the program ended without it."""
        deadline = time.monotonic() + LONG
        with self._seen:
            while True:
                for line in self.lines:
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(entry, dict) and entry.get("event") == name:
                        return entry
                over = not self._reader.is_alive() or time.monotonic() > deadline
                assert not over, "\n".join(self.lines)
                self._seen.wait(0.2)

    def line(self, start: str) -> str:
        """The first plain line that begins so, waited for."""
        return until(start, lambda: next((line for line in self.lines if line.startswith(start)), None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)


def start_api(database: str, **values: str) -> Program:
    """An API on a free port; `.event("api_started")["url"]` says where."""
    env = environment(DATABASE_URL=database, TASKGATE_PORT="0", TASKGATE_LOG_FORMAT="json", **values)
    return Program([TASKGATE, "api"], env)


def start_worker(database: str, *arguments: str, **values: str) -> Program:
    """A worker, with a short lease so that it is quick to stop and recover."""
    env = environment(DATABASE_URL=database, TASKGATE_LOG_FORMAT="json", TASKGATE_GRACE_SECONDS="1", **values)
    return Program([TASKGATE, "worker", *arguments], env)
