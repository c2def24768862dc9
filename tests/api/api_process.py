"""A real API process on a free port, its log lines, and a plain client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import httpx2

DEADLINE = 60.0


async def eventually(check: Callable[[], Awaitable[Any]], seconds: float = DEADLINE) -> Any:
    """The first truthy answer of `check`. Raises AssertionError when the deadline passes without one."""
    end = time.monotonic() + seconds
    while True:
        answer = await check()
        if answer:
            return answer
        assert time.monotonic() < end, f"{check} was not true within {seconds} s"
        await asyncio.sleep(0.02)


class ApiProcess:
    """`python -m taskgate.api`, stopped by its pid when the block ends."""

    def __init__(self, database_url: str, **environment: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TASKGATE_", "DATABASE_", "MAX_CONCURRENT"))}
        self._environment = {
            **clean,
            "DATABASE_URL": database_url,
            "TASKGATE_HOST": "127.0.0.1",
            "TASKGATE_PORT": "0",
            "TASKGATE_LOG_FORMAT": "json",
            **environment,
        }
        self.command = [sys.executable, "-m", "taskgate.api"]
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.url = ""

    def start(self) -> Self:
        """Starts it without waiting for anything."""
        self.process = subprocess.Popen(self.command, env=self._environment, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __enter__(self) -> Self:
        self.start()
        self.url = self.wait_for_event("api_started")["url"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        """The same where a relay of this event loop stands between the API and its database."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(DEADLINE)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event so far."""
        parsed = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [each for each in parsed if each["event"] == name]

    def wait_for_event(self, name: str) -> dict[str, Any]:
        """The first log line of that event. Raises AssertionError when the process ends without one."""
        end = time.monotonic() + DEADLINE
        with self._news:
            while True:
                found = self.events(name)
                if found:
                    return found[0]
                ended = self.process.poll() is not None and not self._reader.is_alive()
                if ended or time.monotonic() > end:
                    raise AssertionError("\n".join([f"no {name} in the log:", *self.lines]))
                self._news.wait(0.2)

    def client(self, key: str = "") -> httpx2.AsyncClient:
        """A client that no proxy of the environment comes between."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=DEADLINE, trust_env=False)

    @property
    def resident_mib(self) -> float:
        """Its memory, from Linux."""
        with open(f"/proc/{self.process.pid}/status") as status:
            kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return kilobytes / 1024

    @property
    def peak_mib(self) -> float:
        """The most memory it ever had, from Linux."""
        with open(f"/proc/{self.process.pid}/status") as status:
            kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        return kilobytes / 1024
