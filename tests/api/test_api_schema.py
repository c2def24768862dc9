"""What the OpenAPI document says, the API does: schemathesis against the running process."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.api.api_process import ApiProcess

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SCHEMA = '{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}'
SECONDS = 30


@pytest.fixture
def database_that_ends_tasks(database: str) -> Iterator[str]:
    """Every task is cancelled soon, so that `wait` has an end."""
    stop = threading.Event()

    def cancel_all() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not stop.wait(0.05):
                connection.execute("SELECT taskgate.cancel(task_id) FROM tasks WHERE status = 'pending' LIMIT 1000")

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT taskgate.register_worker('w', 'python', '0', 'host', 1, 1, ARRAY['summarize'], ARRAY[%s], NULL)",
            (SCHEMA,),
        )
    canceller = threading.Thread(target=cancel_all)
    canceller.start()
    yield database
    stop.set()
    canceller.join()


def test_schemathesis_finds_nothing(database_that_ends_tasks: str, tmp_path: Path) -> None:
    with ApiProcess(database_that_ends_tasks) as api:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{api.url}/openapi.json"),
                *("--checks", CHECKS, "--max-examples", "20", "--seed", "1", "--no-color", "--no-shrink"),
                *("--phases", "examples,coverage,fuzzing", "--max-time", str(SECONDS), "--request-timeout", "60"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS + 180,
        )
        lines = [line for line in api.lines if "request_failed" in line]
    report = f"{run.stdout[-6000:]}\n{run.stderr[-2000:]}\n{lines[:5]}"
    assert run.returncode == 0, report
    assert "Tested: 15" in run.stdout, report
    generated = re.search(r"(\d+) generated", run.stdout)
    assert generated is not None, report
    assert int(generated[1]) > 300, report
    assert lines == []
