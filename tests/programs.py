"""Starts the product's own programs for a test, and ends them by their process id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.waiting import LONG, until

TASKGATE = str(Path(sys.executable).parent / "taskgate")
_no_up = tempfile.TemporaryDirectory(prefix="taskgate-no-up-")
FOREIGN = ("TASKGATE_", "OPENAI_", "GEMINI_", "GOOGLE_", "PG")


def environment(**values: str) -> dict[str, str]:
    """This process's environment without settings of whoever runs the tests, or a running `taskgate up` of theirs,
    plus `values`.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in ("DATABASE_URL", "MAX_CONCURRENT_TASKS", "COLUMNS")
    }
    return {**kept, "NO_COLOR": "1", "XDG_DATA_HOME": _no_up.name, **values}


class Log:
    """The lines that a program writes, read while it runs."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None
        self.lines: list[str] = []
        self._stream = stream
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stream:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The JSON lines with this event so far."""
        found = [json.loads(line) for line in list(self.lines) if line.startswith("{") and line.endswith("}")]
        return [each for each in found if each.get("event") == name]

    def event(self, name: str) -> dict[str, Any]:
        """The first JSON line with this event, waited for; fails when the program ended without it."""
        deadline = time.monotonic() + LONG
        with self._news:
            while True:
                over = not self._reader.is_alive() or time.monotonic() > deadline
                if found := self.events(name):
                    return found[0]
                assert not over, "\n".join([f"no {name} in the log:", *self.lines])
                self._news.wait(0.2)

    def join(self) -> None:
        """Read to its end, which comes with the program's."""
        self._reader.join(LONG)


class Program:
    """A running program of ours whose JSON log lines are read."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            list(arguments), env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.log = Log(self.process.stdout)
        self.lines, self.event = self.log.lines, self.log.event

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
        self.log.join()


def start_api(database: str, **values: str) -> Program:
    """An API on a free port; `.event("api_started")["url"]` says where."""
    env = environment(DATABASE_URL=database, TASKGATE_PORT="0", TASKGATE_LOG_FORMAT="json", **values)
    return Program([TASKGATE, "api"], env)


def start_worker(database: str, *arguments: str, **values: str) -> Program:
    """A worker, with a short lease so that it is quick to stop and recover."""
    env = environment(DATABASE_URL=database, TASKGATE_LOG_FORMAT="json", TASKGATE_GRACE_SECONDS="1", **values)
    return Program([TASKGATE, "worker", *arguments], env)
