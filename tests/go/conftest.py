"""The Go worker as a program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory, "./cmd/taskgate-worker")


def build(tmp_path_factory: pytest.TempPathFactory, package: str) -> str:
    """The program that was built from a package of go/."""
    program = tmp_path_factory.mktemp("go") / package.rsplit("/", 1)[-1]
    command = [str(ROOT / "scripts/go.sh"), "build", "-trimpath", "-o", str(program), package]
    subprocess.run(command, check=True, env={**os.environ, "CGO_ENABLED": "0"}, timeout=900)
    return str(program)
