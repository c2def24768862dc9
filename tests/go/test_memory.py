"""The Go worker stays as small as promised, measured as the benchmark does (all but its timing)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NOT TESTED: RssAnon is Linux's")
@pytest.mark.timeout(900)
def test_memory() -> None:
    command = [sys.executable, "bench/go_memory.py", "--memory-only", "--calls", "1000", "--idle", "5"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert run.returncode == 0, run.stdout + run.stderr
