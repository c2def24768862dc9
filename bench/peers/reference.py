"""What each peer did when it was measured before: the yardstick that tells a peer set wrong, or a busy machine.

Measured 2026-11-29 on the same class of machine (2 cores shared by client, worker and server; PostgreSQL 18.6;
medians of 2). Keys: what was measured, with the worker's slots where they matter. Rates are jobs a second, latencies
milliseconds. Latencies are the best of the ways a peer can be woken.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.report import Report

SOURCE = "measured 2026-11-29 on the same class of machine"
LEAST = 0.6  # a peer below this share of its figure does not count

FIGURES: dict[str, dict[str, float]] = {
    "procrastinate": {"submit": 1_087, "bulk": 7_745, "drain@20": 501, "latency": 5.7, "latency p99": 9.5},
    "pgqueuer": {
        "submit": 2_147,
        "bulk": 28_423,
        "drain@20": 3_601,
        "drain@100": 8_670,
        "drain@400": 11_578,
        "latency": 4.7,
        "latency p99": 6.8,
    },
    "oban": {"submit": 2_115, "bulk": 3_617, "drain@100": 3_188, "latency": 4.5, "latency p99": 7.7},
    "dbos": {"submit": 854, "drain@100": 422, "latency": 851, "latency p99": 1_534},
    "pg-boss": {"submit": 1_483, "bulk": 25_844, "drain@1000": 14_253, "latency": 5.1, "latency p99": 7.6},
    "awa-pg": {
        "submit": 750,
        "bulk": 40_700,
        "drain@20": 1_362,
        "drain@400": 5_141,
        "latency": 10,
        "latency p99": 31,
    },
    "celery": {"submit": 574, "drain@20": 418, "latency": 4.2, "latency p99": 16.8},
    "river": {},
}


def judge(report: Report, peer: str, what: str, runs: Sequence[float]) -> None:
    """Adds a line, and a note when the peer stays so far from its earlier figure that the line does not count."""
    unit = "ms" if what.startswith("latency") else "/s"
    line = report.add(f"{peer}, {what}", runs, unit)
    figure = FIGURES.get(peer, {}).get(what)
    if figure is None:
        return
    reached = figure / line.value if unit == "ms" else line.value / figure
    note = f"{peer}, {what}: {reached:.0%} of {figure:,g} {unit} ({SOURCE})"
    far = reached < LEAST
    report.notes.append(f"NOT COUNTED: {note}: set wrong, or the machine is busy" if far else note)
