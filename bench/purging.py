"""Retention at work: what claims notice of it."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Self

import psycopg

from bench import window
from bench.backlog import Connection, claimed
from bench.report import Report, percentile
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import Database, connect

BATCH = 1000
BREATH = 0.05
"""Seconds between two batches: as API and workers purge (taskgate.upkeep)."""
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"


class Purger:
    """Deletes batch after batch in a thread until it is told to stop, or nothing is left. Resumes when started anew."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.purged = 0
        self.seconds = 0.0
        self.pid = 0

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def at_work(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        """Waits until nothing is left."""
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            self.pid = connection.info.backend_pid
            begun = time.monotonic()
            while not self._stop.is_set():
                row = connection.execute("SELECT taskgate.purge(%s)", [BATCH]).fetchone()
                count = int(row[0]) if row else 0
                self.purged += count
                if count < BATCH:
                    break
                self._stop.wait(BREATH)
            self.seconds += time.monotonic() - begun


async def claim_times(dsn: str, seconds: float) -> list[float]:
    """Milliseconds of each claim of one task, one after the other with small pauses."""
    connection = await connect(Database(dsn), "bench claims")
    calls = Calls(connection)
    worker = f"bench-{time.time_ns()}"
    found = []
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begun = time.perf_counter()
            answer = await calls.claim(worker, 1, [], 60.0, ["noop"])
            found.append((time.perf_counter() - begun) * 1000)
            await calls.complete([(task.task_id, task.token, "null") for task in answer.tasks])
            await asyncio.sleep(0.005)
    finally:
        await connection.close()
    return found


class Blocked:
    """Counts, in a thread, how often somebody was seen waiting for a lock of the purging session."""

    def __init__(self, dsn: str, purger: Purger) -> None:
        self._dsn, self._purger = dsn, purger
        self.looks = self.seen = 0

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.02):
                row = connection.execute(BLOCKED, [self._purger.pid]).fetchone()
                self.looks += 1
                self.seen += int(row[0]) if row else 0


def measure(
    report: Report,
    dsn: str,
    connection: Connection,
    who: str,
    worker: tuple[list[str], dict[str, str]],
    seconds: float,
) -> None:
    """The table has expired rows and a backlog; afterwards no expired ones."""
    alone = asyncio.run(claim_times(dsn, seconds))
    with window.draining(connection, *worker):
        undisturbed = window.rate(connection, seconds)
    purger = Purger(dsn)
    with purger, Blocked(dsn, purger) as blocked:
        beside = asyncio.run(claim_times(dsn, seconds))
        if not purger.at_work:
            raise RuntimeError("everything was purged before the measure was over: there must be more expired rows")
    stopped_at = claimed(connection)
    with purger, Blocked(dsn, purger) as blocked_drain, window.draining(connection, *worker):
        disturbed = window.rate(connection, seconds)
        if not purger.at_work:
            raise RuntimeError("everything was purged before the measure was over: there must be more expired rows")
    if claimed(connection) == stopped_at:
        raise RuntimeError("nothing was claimed while purging")
    with purger:
        purger.finish()
    for name, times in (("alone", alone), ("beside purging", beside)):
        report.add(f"claim of 1 {name}, p50", percentile(times, 50), "ms")
        report.add(f"claim of 1 {name}, p99", percentile(times, 99), "ms")
        report.add(f"claim of 1 {name}, longest", max(times), "ms")
    looks, seen = blocked.looks + blocked_drain.looks, blocked.seen + blocked_drain.seen
    report.add(f"seen waiting for the purging session, in {looks:,} looks", seen, "", at_most=0)
    report.add(f"{who} worker beside purging / undisturbed", disturbed / undisturbed, "×")
    report.add("rows purged, stopped and resumed twice", purger.purged, "")
    report.add("purged", purger.purged / purger.seconds, "/s")
