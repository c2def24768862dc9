"""The processes of the worker under test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskgate.local.account import LocalError
from taskgate.local.binaries import wheel_prefix
from taskgate.local.process import ChildProcess

OURS = ("TASKGATE_", "DATABASE_URL", "MAX_CONCURRENT_TASKS", "OPENAI_", "GEMINI_", "GOOGLE_", "PG")
END_SECONDS = 30.0


class Process:
    """One worker process; its output goes to a file."""

    def __init__(self, name: str, command: str, environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("wb") as output:
            self._child = ChildProcess(shlex.split(command), env=environment, output=output, orphan_grace_seconds=5)

    @property
    def pid(self) -> int:
        return self._child.pid

    def exit_code(self) -> int | None:
        return self._child.poll()

    def send(self, name: str) -> None:
        """A signal as an operator or the kernel sends it: SIGTERM and SIGINT to the process, others to its group."""
        number = signal.Signals[name]
        if number in (signal.SIGTERM, signal.SIGINT):
            self._child.send(number)
        elif self.exit_code() is None:
            os.killpg(self.pid, number)

    async def end(self) -> None:
        """Kill it, with whatever it started."""
        if self.exit_code() is None:
            self._child.kill_group()
            await asyncio.to_thread(self._child.wait, END_SECONDS)

    def events(self) -> list[dict[str, Any]]:
        """The lines of its log that are JSON objects."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found

    def last_words(self, count: int = 25) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {self.name}| {line[:400]}" for line in lines[-count:])


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment without settings of taskgate's, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    folders = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]  # so that `python` is this one
    with contextlib.suppress(LocalError):
        folders.append(str(wheel_prefix() / "bin"))  # and psql is somewhere
    return {
        **kept,
        "PATH": os.pathsep.join(folders),
        **{name: str(value) for name, value in settings.items()},
    }
