"""What holds for the whole run: no proxy for loopback, and what is said at the end."""

from __future__ import annotations

import os
from collections import Counter

import pytest

# Every test talks to loopback only; curl, urllib and others would ask the machine's proxy for it.
for name in ("NO_PROXY", "no_proxy"):
    os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost,::1"]))

CONFORMANCE = "conformance/workers/test_workers.py::test_"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The number of conformance cases of each worker."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            name, bracket, _ = report.nodeid.removeprefix(CONFORMANCE).partition("[")
            if report.nodeid.startswith(CONFORMANCE) and bracket:
                counts[name, outcome] += 1
    for worker in sorted({name for name, _ in counts}):
        terminalreporter.write_line(
            f"conformance of {worker}: {counts[worker, 'passed']} cases passed, {counts[worker, 'failed']} failed"
        )
