"""The Go module: formatted, vetted, and its tests with the race detector against a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from taskgate.local.postgres import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]
GO = str(ROOT / "scripts/go.sh")


def go(*arguments: str, **environment: str) -> str:
    run = subprocess.run(
        [GO, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=1500
    )
    assert run.returncode == 0, f"go {' '.join(arguments)}\n{run.stdout[-20_000:]}\n{run.stderr[-5_000:]}"
    return run.stdout


def race_detector() -> list[str]:
    """`-race` needs cgo and a C compiler."""
    if shutil.which("gcc") or shutil.which("clang"):
        return ["-race"]
    warnings.warn("NOT TESTED for data races: there is no C compiler (apt-get install gcc)", stacklevel=2)
    return []


def test_formatted_and_vetted() -> None:
    root = go("env", "GOROOT").strip()
    gofmt = shutil.which("gofmt") or f"{root}/bin/gofmt"
    places = [ROOT / "go", ROOT / "examples/summarize-go"]
    run = subprocess.run([gofmt, "-l", *map(str, places)], capture_output=True, text=True, timeout=300, check=True)
    assert run.stdout == ""
    go("vet", "./...")


@pytest.mark.timeout(1800)
def test_go_tests(postgres: EmbeddedPostgres, migrated_template: str) -> None:
    race = race_detector()
    environment = {"TASKGATE_TEST_DATABASE_URL": postgres.dsn_of(migrated_template)}
    if race:
        environment["CGO_ENABLED"] = "1"
    print(go("test", "-count=1", "-timeout=20m", *race, "./...", **environment))
