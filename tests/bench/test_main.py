"""`python -m bench`: what it lists, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import NAMES, load, summary

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_it_lists_every_comparison() -> None:
    run = bench()
    assert run.returncode == 0, run.stderr
    for name in NAMES:
        assert f"{name:10} {summary(load(name))}" in run.stdout


def test_figures_that_do_not_count_are_not_recorded() -> None:
    before = (ROOT / "bench/RESULTS.md").read_bytes()
    run = bench("submit", "--anyway", "--record")
    assert run.returncode == 2
    assert "leave --anyway out" in run.stderr
    assert (ROOT / "bench/RESULTS.md").read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_tells_of_every_comparison(name: str) -> None:
    assert f"\n### {name}\n" in (ROOT / "bench/README.md").read_text(encoding="utf-8")
