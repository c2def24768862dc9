"""scripts/load_submit.py against a real API and worker; its lines have the names that people compare."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg

from tests.programs import Program, environment
from tests.waiting import LONG

SCRIPT = Path(__file__).parents[2] / "scripts" / "load_submit.py"
REPORT = re.compile(
    r"submitted=40/40\nok=40\nfailed=0\nelapsed=\d+\.\d\ds\navg_submit_rate=\d+\.\d/s\n"
    r"latency_seconds min=\d\.\d{3} p50=\d\.\d{3} p95=\d\.\d{3} p99=\d\.\d{3} max=\d+\.\d{3}\n"
)
DOCKER = """#!/bin/sh
echo '{"Name":"t-postgres-1","CPUPerc":"12.5%","MemUsage":"45.1MiB / 1GiB","BlockIO":"1MB / 2MB"}'
echo '{"Name":"t-api-1","CPUPerc":"3.0%","MemUsage":"60MiB / 1GiB","BlockIO":"0B / 0B"}'
"""


def load(url: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--url", url, *arguments],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=LONG,
    )


def test_reports_and_follows(api: str, worker: Program, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SELECT taskgate.set_limit(3)")
    done = load(api, "--total", "40", "--concurrency", "8", "--type", "echo", "--follow")
    assert (done.returncode, done.stderr) == (0, "")
    assert REPORT.match(done.stdout), done.stdout
    highest = re.search(r"^highest_running=(\d+) limit=3 held$", done.stdout, re.MULTILINE)
    assert highest is not None
    assert int(highest[1]) <= 3
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT status, count(*) FROM tasks GROUP BY status").fetchall()
    assert rows == [("completed", 40)]


def test_docker_stats(api: str, tmp_path: Path) -> None:
    stand_in = tmp_path / "docker"
    stand_in.write_text(DOCKER)
    stand_in.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = load(api, "--total", "40", "--concurrency", "50", "--docker-stats", PATH=path)
    assert REPORT.match(done.stdout), done.stdout
    for when in ("during", "after"):
        assert f"{when} docker name=t-api-1 cpu=3.0% memory=60MiB/1GiB block_io=0B/0B\n" in done.stdout
        assert f"{when} docker name=t-postgres-1 cpu=12.5% memory=45.1MiB/1GiB block_io=1MB/2MB\n" in done.stdout
    done = load(api, "--total", "2", "--docker-stats", PATH="/nowhere")
    assert "docker_stats unavailable" in done.stdout
    assert done.returncode == 0


def test_failures_are_counted_and_shown(api: str) -> None:
    done = load(api, "--total", "5", "--concurrency", "2", "--type", "nosuch")
    assert done.returncode == 1
    assert "submitted=5/5\nok=0\nfailed=5\n" in done.stdout
    assert "5 x HTTP 404" in done.stderr
    done = load("http://127.0.0.1:9", "--total", "5")
    assert done.returncode == 4
    assert "cannot reach" in done.stderr
