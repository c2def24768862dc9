"""A real API process on a free port, its log lines, and a plain client."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.programs import Log, environment

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

    def __init__(self, database_url: str, **values: str) -> None:
        self._environment = environment(
            **{
                "DATABASE_URL": database_url,
                "TASKGATE_HOST": "127.0.0.1",
                "TASKGATE_PORT": "0",
                "TASKGATE_LOG_FORMAT": "json",
                **values,
            }
        )
        self.command = [sys.executable, "-m", "taskgate.api"]
        self.url = ""

    def start(self) -> Self:
        """Starts it without waiting for anything."""
        self.process = subprocess.Popen(self.command, env=self._environment, stderr=subprocess.PIPE, text=True)
        self.log = Log(self.process.stderr)
        self.lines, self.events = self.log.lines, self.log.events
        return self

    def __enter__(self) -> Self:
        self.start()
        self.url = self.log.event("api_started")["url"]
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
        self.log.join()
        return code

    def client(self, key: str = "") -> httpx2.AsyncClient:
        """A client that no proxy of the environment comes between."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=DEADLINE, trust_env=False)

    @property
    def resident_mib(self) -> float:
        """Its memory, from Linux."""
        return self._mib("VmRSS")

    @property
    def peak_mib(self) -> float:
        """The most memory it ever had, from Linux."""
        return self._mib("VmHWM")

    def _mib(self, field: str) -> float:
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024
