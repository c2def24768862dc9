"""What the whole run says at its end, also when several processes shared the work."""

from __future__ import annotations

from collections import Counter

import pytest

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
