"""One supervised program of `taskgate up`: started, watched, started again, its output kept and shown."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from taskgate.local.logs import open_log
from taskgate.local.process import ChildProcess

Say = Callable[[str], None]

BACKOFF_FIRST = 1.0
BACKOFF_MAX = 30.0
SETTLED_SECONDS = 60.0  # a program that ran so long is no longer failing at its start
REPEAT_SECONDS = 30.0  # the same trouble again is not shown again so soon
SHOWN_LEVELS = frozenset({"warning", "warn", "error", "critical", "fatal"})
FIXED_KEYS = frozenset({"event", "msg", "level", "timestamp", "time", "logger", "exception", "traceback"})


class Service:
    """A child process that is kept running until `stop`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        logs: Path,
        say: Say,
        *,
        show_all: bool = False,
    ) -> None:
        self.name = name
        self._argv = list(argv)
        self._env = dict(env)
        self._log_file = logs / f"{name.replace(' ', '-')}.log"
        self._say = say
        self._show_all = show_all
        self._child: ChildProcess | None = None
        self._reader: threading.Thread | None = None
        self._tail: deque[str] = deque(maxlen=30)
        self._started_at = 0.0
        self._backoff = BACKOFF_FIRST
        self._again_at: float | None = None
        self._lines: list[str] = []
        self._line_seen = threading.Condition()
        self._shown = ("", 0.0)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Starts the program. Raises OSError when it cannot be."""
        self._started_at = time.monotonic()
        self._again_at = None
        self._child = ChildProcess(self._argv, env=self._env, output=subprocess.PIPE)
        assert self._child.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True)
        self._reader.start()

    def ended(self) -> int | None:
        """The exit code of a program that has ended, None while it runs."""
        return self._child.poll() if self._child is not None else None

    def tail(self) -> str:
        """Its last lines of output."""
        if self._reader is not None and self.ended() is not None:
            self._reader.join(2)
        return "\n".join(self._tail)

    def first_line(self, match: Callable[[str], str | None], cancelled: Callable[[], bool]) -> str | None:
        """Waits for a line of output that `match` takes; None when the program ended or we were cancelled."""
        seen = 0
        while True:
            with self._line_seen:
                fresh = self._lines[seen:]
                if not fresh:
                    if self.ended() is not None or cancelled():
                        return None
                    self._line_seen.wait(0.1)
                    continue
            seen += len(fresh)
            for line in fresh:
                if (found := match(line)) is not None:
                    return found

    def watch(self) -> bool:
        """Starts a program again that has ended, after a pause that grows. True when it was started now."""
        code = self.ended()
        if self._child is None or code is None:
            return False
        now = time.monotonic()
        if self._again_at is None:
            if now - self._started_at > SETTLED_SECONDS:
                self._backoff = BACKOFF_FIRST
            self._say(f"{self.name} ended ({describe_exit(code)}); starting it again in {self._backoff:.0f} s")
            self._again_at = now + self._backoff
            self._backoff = min(self._backoff * 2, BACKOFF_MAX)
            return False
        if now < self._again_at:
            return False
        try:
            self.start()
        except OSError as error:
            self._say(f"{self.name} cannot be started: {error}")
            self._again_at = now + self._backoff
            return False
        self._say(f"{self.name} runs again (process {self.pid})")
        return True

    def ask_to_stop(self) -> None:
        """SIGTERM, once."""
        if self._child is not None:
            self._child.send(signal.SIGTERM)

    def wait_stopped(self, deadline: float) -> None:
        """Waits until `deadline` (of time.monotonic), then kills what is left."""
        if self._child is None:
            return
        try:
            self._child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._say(f"{self.name} does not end; killing it")
            self.kill()
        if self._reader is not None:
            self._reader.join(2)
        self._child = None

    def kill(self) -> None:
        """SIGKILL to the program and what it started."""
        if self._child is not None:
            self._child.kill_group()
            self._child.wait()

    def _read(self, output: IO[bytes]) -> None:
        with open_log(self._log_file) as log:
            for raw in output:
                log.write(raw)
                log.flush()
                line = raw.decode(errors="replace").rstrip()
                self._tail.append(line)
                with self._line_seen:
                    if len(self._lines) < 1000:  # readiness is told at the start
                        self._lines.append(line)
                    self._line_seen.notify_all()
                self._show(line)
        output.close()

    def _show(self, line: str) -> None:
        text = line if self._show_all else notable(line)
        now = time.monotonic()
        if text is None or (text == self._shown[0] and now < self._shown[1] + REPEAT_SECONDS):
            return
        self._shown = (text, now)
        self._say(f"{self.name} | {text}")


def notable(line: str) -> str | None:
    """A structured log line from warning up, made short; None for the rest, which is in the log file."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or str(entry.get("level", "")).lower() not in SHOWN_LEVELS:
        return None
    details = [f"{key}={value}" for key, value in entry.items() if key not in FIXED_KEYS]
    what = entry.get("event", entry.get("msg", ""))
    cause = str(entry.get("exception", "")).strip().splitlines()[-1:]
    return " ".join(" ".join([str(entry["level"]).lower(), str(what), *details, *cause]).split())[:500]


def describe_exit(code: int) -> str:
    """For example "exit code 1" or "SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
