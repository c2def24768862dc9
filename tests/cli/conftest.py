"""The real command as a process, a real API and a real worker with a small handler."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.programs import TASKGATE, Program, environment, start_api, start_worker
from tests.waiting import LONG


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The JSON error on stderr."""
        return json.loads(self.err.strip().splitlines()[-1])["error"]


Cli = Callable[..., Ran]


def run(env: dict[str, str], *arguments: str, stdin: str = "") -> Ran:
    done = subprocess.run([TASKGATE, *arguments], env=env, input=stdin, capture_output=True, text=True, timeout=LONG)
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def operate(database: str) -> Cli:
    """Runs `taskgate` with DATABASE_URL alone; `env` adds variables."""

    def call(*arguments: str, env: dict[str, str] | None = None, stdin: str = "") -> Ran:
        return run(environment(DATABASE_URL=database) | (env or {}), *arguments, stdin=stdin)

    return call


@pytest.fixture
def api(database: str) -> Iterator[str]:
    """The URL of an API on the test's database."""
    with start_api(database) as program:
        yield program.event("api_started")["url"]


@pytest.fixture
def produce(api: str) -> Cli:
    """Runs `taskgate` with TASKGATE_URL alone, and a dead proxy that must not be asked."""
    env = environment(TASKGATE_URL=api, HTTP_PROXY="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9")

    def call(*arguments: str, stdin: str = "") -> Ran:
        return run(env, *arguments, stdin=stdin)

    return call


HANDLERS = '''
import asyncio
from taskgate import Handlers, PermanentError, Task

handlers = Handlers()

@handlers.handler("echo")
async def echo(task: Task):
    """Answers with its request."""
    if task.request["prompt"] == "break":
        raise PermanentError("as asked", code="asked_for")
    if task.request["prompt"] == "hang":
        await asyncio.sleep(600)
    return {"text": f"echo {task.request['prompt']}"}
'''


@pytest.fixture
def worker(database: str, tmp_path: Path) -> Iterator[Program]:
    """A worker for the type `echo`: fails at `break`, hangs at `hang`, else echoes the prompt."""
    (tmp_path / "cli_echo.py").write_text(HANDLERS)
    with start_worker(
        database, "--app", "cli_echo:handlers", "--types", "echo", PYTHONPATH=str(tmp_path), TASKGATE_LEASE_SECONDS="5"
    ) as program:
        program.event("worker_started")
        yield program
