"""The example programs, as a reader would run them: each does the same tasks with the same outcome."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from taskgate.local.fake_provider import FakeProvider

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, object]


class Example:
    """A worker process that is told to drain at the end."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        self.output = output
        with output.open("wb") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, cwd=ROOT, stdout=log, stderr=log
            )

    def drain(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Example]]:
    running: list[Example] = []

    def run(command: list[str], **environment: str) -> Example:
        running.append(Example(command, environment, tmp_path / f"{len(running)}.log"))
        return running[-1]

    yield run
    for each in running:
        each.drain()


def submit(db: psycopg.Connection[Row], task_id: str, task_type: str, request: str) -> None:
    db.execute(
        "INSERT INTO tasks (task_id, status, task_type, request) VALUES (%s, 'pending', %s, %s)",
        (task_id, task_type, request),
    )


def ended(db: psycopg.Connection[Row], task_id: str, example: Example) -> Row:
    deadline = time.monotonic() + 90
    while True:
        row = db.execute("SELECT * FROM tasks WHERE task_id = %s", (task_id,)).fetchone()
        assert row is not None
        if row["status"] in ("completed", "failed"):
            return row
        assert example.process.poll() is None, example.output.read_text()
        assert time.monotonic() < deadline, f"{task_id} is {row['status']}\n{example.output.read_text()[-5000:]}"
        time.sleep(0.05)


def go_command(tmp_path: Path) -> list[str]:
    program = tmp_path / "summarize"
    build = [str(ROOT / "scripts/go.sh"), "-C", str(ROOT / "examples/summarize-go"), "build", "-o", str(program), "."]
    subprocess.run(build, check=True, timeout=600)
    return [str(program)]


def python_command(_: Path) -> list[str]:
    return [sys.executable, "-m", "taskgate.worker", "--app", "examples.summarize:handlers", "--types", "summarize"]


@pytest.mark.parametrize("command", [go_command, python_command], ids=["go", "python"])
def test_summarize(
    command: Callable[[Path], list[str]], database: str, tmp_path: Path, start: Callable[..., Example]
) -> None:
    example = start(command(tmp_path), DATABASE_URL=database, TASKGATE_LOG_FORMAT="json")
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as db:
        submit(db, "short", "summarize", '{"text": "one two three", "words": 2}')
        submit(db, "empty", "summarize", '{"text": " "}')
        submit(db, "later", "summarize", '{"text": "later is better"}')
        submit(db, "wrong", "summarize", '{"text": 7}')
        assert ended(db, "short", example)["result"] == {"summary": "one two", "dropped": 1}
        empty = ended(db, "empty", example)
        assert (empty["error"], empty["error_code"]) == ("there is nothing to summarize", "empty_text")
        later = ended(db, "later", example)
        assert (later["result"], later["attempts"], later["releases"]) == (
            {"summary": "later is better", "dropped": 0},
            1,
            1,
        )
        assert ended(db, "wrong", example)["error_code"] == "invalid_request"
    assert example.drain() == 0


@pytest.mark.skipif(not (shutil.which("psql") and shutil.which("curl")), reason="NOT TESTED: no psql or curl here")
async def test_worker_in_bash(database: str, start: Callable[..., Example]) -> None:
    script = ROOT / "examples/worker.sh"
    assert len(script.read_text().splitlines()) < 100
    async with FakeProvider() as provider:
        provider.script("SOON", {"fault": "429", "retry_after": 0.2}, {"ok": "after all"})
        await _bash(database, start, script, provider)


async def _bash(database: str, start: Callable[..., Example], script: Path, provider: FakeProvider) -> None:
    environment = {
        "DATABASE_URL": database,
        "OPENAI_BASE_URL": f"{provider.url}/v1",
        "TASKGATE_LLM_MODEL": "m",
        "TASKGATE_LEASE_SECONDS": "3",
    }
    example = start(["bash", str(script)], **environment)
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as db:
        submit(db, "quoted id", "llm", '{"prompt": "it\'s \\"quoted\\" \\\\ back", "system": "S"}')
        submit(db, "soon", "llm", '{"prompt": "SOON"}')
        submit(db, "filter", "llm", '{"prompt": "[[fault:content_filter]]"}')
        submit(db, "refused", "llm", '{"messages": [{"role": "user", "content": "[[fault:400]]"}]}')
        submit(db, "slow", "llm", '{"prompt": "[[latency:5]]"}')
        rows = {
            name: await asyncio.to_thread(ended, db, name, example)
            for name in ("quoted id", "soon", "filter", "refused", "slow")
        }
        assert rows["quoted id"]["result"]["text"].startswith('Fake answer to: it\'s "quoted" \\ back')  # type: ignore[index]
        assert rows["soon"]["result"]["text"] == "after all"  # type: ignore[index]
        assert (rows["soon"]["attempts"], rows["soon"]["releases"]) == (1, 1)
        assert rows["filter"]["error_code"] == "content_filtered"
        assert rows["refused"]["error_code"] == "provider_refused"
        assert (rows["slow"]["status"], rows["slow"]["attempts"]) == ("completed", 1)  # its lease was renewed
    assert await asyncio.to_thread(example.drain) == 0
