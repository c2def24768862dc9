"""What the machine itself takes just now for the steps that every submission to a database is made of.

A shared machine is slower in some minutes than in others, and disks differ by a factor of ten: beside a latency stand
one round trip to PostgreSQL and one write that is on disk, measured with the same pauses.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import asyncpg

from bench.fleet import pause
from bench.report import Report, percentile

SAMPLES = 200
WAL_PAGE = 8192


def yardsticks(report: Report, before: str, dsn: str, folder: Path, gap: float) -> None:
    """Adds the two, measured just `before` that. `folder` is on the server's disk; `gap`: the mean pause in seconds."""
    trips = asyncio.run(_trips(dsn, gap))
    report.add(f"before {before}, SELECT 1 by asyncpg: p50", [percentile(trips, 50)], "ms")
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * WAL_PAGE * SAMPLES)
        os.fsync(file.fileno())
        writes = _writes(file.fileno(), gap)
    report.add(f"before {before}, fdatasync of 8 KiB: p50", [percentile(writes, 50)], "ms")


async def _trips(dsn: str, gap: float) -> list[float]:
    connection = await asyncpg.connect(dsn)
    try:
        found = []
        for _ in range(SAMPLES):
            await asyncio.sleep(pause(gap))
            begun = time.perf_counter()
            await connection.fetchval("SELECT 1")
            found.append((time.perf_counter() - begun) * 1000)
        return found
    finally:
        await connection.close()


def _writes(descriptor: int, gap: float) -> list[float]:
    found = []
    for page in range(SAMPLES):
        time.sleep(pause(gap))
        begun = time.perf_counter()
        os.pwrite(descriptor, b"y" * WAL_PAGE, page * WAL_PAGE)
        os.fdatasync(descriptor)
        found.append((time.perf_counter() - begun) * 1000)
    return found
