"""The worker, put together: claimer, runner, settler and lease keeper, from registration to the last write.

A process has three connections to the database: one claims and does upkeep, one writes outcomes and checkpoints,
and the lease keeper's renews and listens. The first task that stores media opens a fourth: what waits behind
megabytes is other media.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from taskgate import __version__
from taskgate.logs import get_logger
from taskgate.media.backend import open_backend
from taskgate.media.collect import collect_media
from taskgate.media.place import parse_place
from taskgate.media.upload import MediaStore
from taskgate.protocol.calls import Calls, Release, WorkerInfo
from taskgate.protocol.media import MediaCalls
from taskgate.protocol.version import SchemaMismatch, check_version
from taskgate.settings import Settings
from taskgate.task import Handlers
from taskgate.upkeep import DatabaseState, upkeep
from taskgate.worker.claimer import Claimer
from taskgate.worker.health import serve_health
from taskgate.worker.lease import LeaseKeeper
from taskgate.worker.link import TROUBLE, Backoff, Link
from taskgate.worker.loops import kept_going
from taskgate.worker.outcome import given_back
from taskgate.worker.results import words
from taskgate.worker.run import Run
from taskgate.worker.runner import Runner
from taskgate.worker.settle import Settler
from taskgate.worker.signals import Signals
from taskgate.worker.watchdog import Watchdog

log = get_logger("worker")

EXIT_OK, EXIT_SCHEMA = 0, 3
STOP_SECONDS = 2.0
"""After the grace, handlers have so long to end once they are told to stop."""
STOP_NOW_SECONDS = 1.0
"""The same after a second signal; the flush has as much."""
FLUSH_SECONDS, STALLED_SECONDS = 10.0, 2.0
"""Outcomes are written for so long after that, as long as it goes on: one that stands still is not waited for."""
MEDIA_SECONDS = 30.0
"""So long one call may take that writes a MiB of media."""
ROW_LOCK_SECONDS = 1.0
"""A checkpoint waits so long for its row where somebody else has locked it, since outcomes wait behind it."""


class Worker:
    """One worker process. `run()` answers the exit code."""

    def __init__(self, handlers: Handlers, settings: Settings) -> None:
        self.handlers = handlers
        self.settings = settings
        self._mismatch = False
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    async def run(self) -> int:
        """Work until a signal comes. Raises nothing for what the database or handlers do."""
        signals = self._signals = Signals()
        settings, database, lease = self.settings, self.settings.database, self.settings.lease_seconds
        state = DatabaseState()
        self._info = self._worker_info()
        claim_link = Link(database, "taskgate worker", timeout=min(30.0, max(3.0, lease / 2)), state=state,
                          on_connect=self._greet)  # fmt: skip
        settle_link = Link(database, "taskgate worker results", timeout=min(30.0, max(3.0, lease / 2)), state=state,
                           lock_timeout=ROW_LOCK_SECONDS)  # fmt: skip
        calls = Calls(claim_link, database.schema)
        settler = Settler(Calls(settle_link, database.schema), self._finished)
        self.settler = settler
        media_link = Link(database, "taskgate worker media", timeout=MEDIA_SECONDS, state=state,
                          lock_timeout=ROW_LOCK_SECONDS)  # fmt: skip
        place = parse_place(settings.media_store)
        media = MediaStore(MediaCalls(media_link, database.schema), place, open_backend(place),
                           settings.media_max_store_bytes)  # fmt: skip
        collected = MediaCalls(claim_link, database.schema)
        self.runner = Runner(self.handlers, settings, Calls(settle_link, database.schema), settler, media)
        self.claimer = Claimer(calls, self.worker_id, self.handlers.names(), lease, settings.poll_seconds, self.runner)
        settler.refiller = self.claimer.refiller
        self.claimer.refiller.results_over = lambda: settle_link.number
        keeper = LeaseKeeper(
            database, self.worker_id, lease, self.runner.runs, types=self.handlers.names(),
            overdue=self.runner.slots.overdue, over=settler.finish, stop=self.runner.stop,
            notified=self.claimer.notified, called=self.claimer.called, state=state,
        )  # fmt: skip
        self.claimer.listens_by = lambda: keeper.listens_by
        watchdog = Watchdog(self.runner.runs, signals, lease=lease, timeout=settings.timeout_seconds,
                            grace=settings.grace_seconds)  # fmt: skip
        watchdog.start()
        self._idle = asyncio.Event()
        upkeep_over = asyncio.Event()
        async with asyncio.TaskGroup() as background:
            health = background.create_task(kept_going("health", lambda: serve_health(self, state)))
            if not await self._connected(claim_link, signals):
                health.cancel()
                watchdog.end()
                return EXIT_SCHEMA if self._mismatch else EXIT_OK
            log.info("worker_started", worker_id=self.worker_id, version=__version__, slots=settings.slots,
                     types=self.handlers.names())  # fmt: skip
            keeper.start()
            settling = background.create_task(kept_going("settler", settler.work))
            recover_seconds = min(30.0, max(2.0, lease / 2))  # a claim recovers too, and so does every other process
            tending = background.create_task(self._while_in_range("upkeep", lambda: upkeep(
                calls, upkeep_over, state=state, recover_seconds=recover_seconds,
                collect=lambda: collect_media(collected, place.name, media.backend)), signals))  # fmt: skip
            claiming = background.create_task(self._while_in_range("claimer", self.claimer.work, signals))
            await signals.drain.wait()
            self.claimer.stop()
            keeper.drain()
            upkeep_over.set()
            released = await self._drain(signals, claiming)
            for task in (settling, tending, claiming, health):
                task.cancel()
        if settler.is_flushed:  # else the database does not answer
            await self._goodbye(calls)
        keeper.end(1.0)
        await claim_link.close()
        await settle_link.close()
        await media_link.close()
        log.info("worker_stopped", worker_id=self.worker_id, released=released)
        watchdog.end()
        if self._mismatch:
            return EXIT_SCHEMA
        return 128 + signals.number if signals.now.is_set() else EXIT_OK

    @property
    def running(self) -> int:
        """Attempts under way, or waiting for their outcome to be written."""
        return len(self.runner.runs)

    @property
    def draining(self) -> bool:
        return self._signals.drain.is_set()

    @property
    def claimed(self) -> int:
        return self.claimer.claimed

    @property
    def counts(self) -> dict[str, int]:
        """Outcomes written so far, by kind."""
        return self.settler.counts

    @property
    def handlers_left(self) -> bool:
        """Whether handlers still run after `run()`: they will not stop, and end with the process."""
        runner: Runner | None = getattr(self, "runner", None)
        return runner is not None and (runner.threads.busy > 0 or any(not run.ended for run in runner.runs.values()))

    def _worker_info(self) -> WorkerInfo:
        types: dict[str, tuple[str | None, str]] = {}
        for each in self.handlers:
            schema = each.request_schema()
            types[each.name] = (None if schema is None else json.dumps(schema), each.description)
        return WorkerInfo(
            self.worker_id, "python", __version__, socket.gethostname(), os.getpid(), self.settings.slots, types
        )

    async def _greet(self, connection: asyncpg.Connection[Any]) -> None:
        """On each new connection: is the schema one we know, and does the database know us? (It may be another.)"""
        calls = Calls(connection, self.settings.database.schema)
        check_version(await calls.schema_version())
        await calls.register_worker(self._info)

    async def _connected(self, link: Link, signals: Signals) -> bool:
        """Wait for the database, however long it takes; False when there is no use in it."""
        backoff = Backoff(0.1, 5.0)
        while not signals.drain.is_set():
            try:
                await link.connected()
                return True
            except SchemaMismatch as error:
                self._mismatch = True
                log.error("schema_mismatch", error=str(error))
                return False
            except Exception as error:
                if not isinstance(error, TROUBLE):
                    log.error("register_failed", error=words(error))
                await _first(signals.drain.wait(), timeout=backoff.next())
        return False

    async def _while_in_range(self, name: str, work: Callable[[], Awaitable[None]], signals: Signals) -> None:
        """Do `work`; drain when a reconnect finds that the database was migrated out of this program's range."""
        try:
            await kept_going(name, work)
        except SchemaMismatch as error:
            if not self._mismatch:
                self._mismatch = True
                log.error("schema_mismatch", error=str(error))
            signals.drain.set()

    def _finished(self, run: Run) -> None:
        if self.runner.runs.pop(run.token, None) is not None:
            self.claimer.wake()
            if not self.runner.runs:
                self._idle.set()

    async def _drain(self, signals: Signals, claiming: asyncio.Task[None]) -> int:
        """Let the attempts end, then stop them, then write what is left; how many were given back."""
        runs = self.runner.runs
        log.info("draining", running=len(runs), grace_seconds=self.settings.grace_seconds)
        await _first(self._all_over(claiming), signals.now.wait(), timeout=self.settings.grace_seconds)
        if signals.now.is_set():
            log.warning("stopping_now", running=len(runs))
        before = list(runs.values())
        for run in before:
            self.runner.stop(run, "shutdown")
        await _first(self._all_over(claiming), timeout=STOP_NOW_SECONDS if signals.now.is_set() else STOP_SECONDS,
                     unless=None if signals.now.is_set() else signals.now)  # fmt: skip
        for run in list(runs.values()):
            if run.settlement is None and not run.gone:  # it will not stop; it ends with the process
                self.settler.put(run, given_back(run, "released", "the worker is shutting down"))
        await _first(self._flushed(),
                     timeout=STOP_NOW_SECONDS if signals.now.is_set() else FLUSH_SECONDS,
                     unless=None if signals.now.is_set() else signals.now)  # fmt: skip
        return sum(run.settled and run.reason == "shutdown" and isinstance(run.settlement, Release) for run in before)

    async def _all_over(self, claiming: asyncio.Task[None]) -> None:
        await asyncio.wait([claiming])
        while self.runner.runs:
            self._idle.clear()
            await self._idle.wait()

    async def _flushed(self) -> None:
        """Wait until all outcomes are written, or none was for a while."""
        written = -1
        while not self.settler.is_flushed and written != (written := sum(self.settler.counts.values())):
            await _first(self.settler.flushed(), timeout=STALLED_SECONDS)

    async def _goodbye(self, calls: Calls) -> None:
        with contextlib.suppress(Exception):  # it is forgotten after a day
            async with asyncio.timeout(STOP_NOW_SECONDS):
                await calls.forget_worker(self.worker_id)


async def _first(*waits: Any, timeout: float, unless: asyncio.Event | None = None) -> None:
    """Wait until one of `waits` is over, for `timeout` seconds at most; or until `unless` is set."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    if unless is not None:
        tasks.append(asyncio.ensure_future(unless.wait()))
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
