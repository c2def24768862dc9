"""The lease keeper: renews the leases of all attempts in one batch, and stops those it could not renew in time.

It lives in a thread with an event loop and a database connection of its own, so that a handler that blocks the
worker's loop cannot starve it. The same connection listens for notifications: renewing proves it alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable

import asyncpg

from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls, Release
from taskgate.protocol.connect import Database
from taskgate.protocol.version import SchemaMismatch
from taskgate.upkeep import DatabaseState
from taskgate.worker.clock import now
from taskgate.worker.link import TROUBLE, Backoff, Link
from taskgate.worker.loops import kept_going
from taskgate.worker.results import error_text, words
from taskgate.worker.run import Run
from taskgate.worker.runner import lease_margin
from taskgate.worker.wake import Listener

log = get_logger("worker")

SIGN_OF_LIFE_SECONDS = 20.0
"""The worker says at least so often that it lives and what it holds, which proves the listening connection too."""


class LeaseKeeper:
    """`runs` is the runner's table; `overdue(before)` takes those claimed before then out of the line for a slot;
    `stop(run, reason)`, `over(run)`, `notified()`, `called()` are called on the worker's loop.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        lease: float,
        runs: dict[int, Run],
        *,
        types: list[str],
        overdue: Callable[[float], list[Run]],
        over: Callable[[Run], None],
        stop: Callable[[Run, str], None],
        notified: Callable[[], None],
        called: Callable[[], None],
        state: DatabaseState,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lease = lease
        self._margin = lease_margin(lease)
        self._runs = runs
        self._overdue = overdue
        self._over = over
        self._stop_run = stop
        self._state = state
        self._worker_loop = asyncio.get_running_loop()
        self._listener = Listener(self._worker_loop, types, database.schema, ready=notified, called=called,
                                  cancelled=self._check_soon)  # fmt: skip
        self._draining = False
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poke: asyncio.Event | None = None
        self._check: set[str] = set()
        self._thread = threading.Thread(target=self._in_thread, name="lease-keeper", daemon=True)

    @property
    def listens_by(self) -> int:
        """The number by which this process is woken alone; 0 while it hears nothing."""
        return self._listener.number

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """From now on the worker counts as draining; leases are kept all the same."""
        self._draining = True
        self._poke_it()

    def end(self, seconds: float) -> None:
        """Stop renewing and close the connection; waits up to `seconds`."""
        self._ended = True
        self._poke_it()
        self._thread.join(seconds)

    def _poke_it(self) -> None:
        loop, poke = self._loop, self._poke
        if loop is not None and poke is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended
                loop.call_soon_threadsafe(poke.set)

    # what follows runs in the keeper's thread

    def _in_thread(self) -> None:
        while not self._ended:
            try:
                with asyncio.Runner() as runner:
                    runner.run(self._keep())
            except Exception as error:  # whatever it is, without this thread every lease would be lost
                with contextlib.suppress(Exception):  # not for want of a log either
                    log.error("lease_keeper_failed", error=f"{type(error).__name__}: {words(error)}")
                time.sleep(0.1)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._poke = asyncio.Event()
        timeout = min(10.0, max(0.5, self._lease / 4))
        link = Link(self._database, "taskgate worker leases", timeout=timeout, state=self._state,
                    on_connect=None if self._database.pooler else self._listener.attach)  # fmt: skip
        calls = Calls(link, self._database.schema)
        watch = asyncio.create_task(kept_going("lease watch", self._watch))
        try:
            await self._renew_for_ever(calls)
        finally:
            watch.cancel()
            await link.close()

    async def _renew_for_ever(self, calls: Calls) -> None:
        backoff = Backoff(0.05, min(1.0, self._lease / 10))
        next_regular = next_sign = now()
        said_draining = False
        while not self._ended:
            at = now()
            check, self._check = self._check, set()
            if at >= next_regular:
                await self._give_back_overdue(calls)
            all_held = [run for run in list(self._runs.values()) if not (run.gone or run.settled)]
            # what waits for a slot shows by its age, and by its attempt that is not counted, that it has not begun
            held = [run for run in all_held if run.task is not None]
            if waiting := {run.claimed.task_id for run in all_held if run.task is None} & check:
                self._check_later(waiting)
            due = any(
                run.claimed.task_id in check or (at >= next_regular and at - run.renewed_at >= self._lease / 6)
                for run in held
            )
            if at >= next_regular:
                next_regular = at + self._lease / 3
            if due or at >= next_sign or self._draining != said_draining:
                try:
                    await self._renew(calls, held)  # all of them: their number is what `stats` tells as busy
                except (*TROUBLE, asyncpg.PostgresError, SchemaMismatch) as error:
                    if not isinstance(error, TROUBLE):
                        log.error("renew_failed", error=str(error))
                    self._check |= check
                    next_regular = now()
                    await self._pause(backoff.next())
                    continue
                backoff.reset()
                said_draining = self._draining
                next_sign = now() + SIGN_OF_LIFE_SECONDS * random.uniform(0.8, 1.2)
            if not self._check:
                await self._pause(max(0.01, min(next_regular, next_sign) - now()) if self._runs
                                  else max(0.01, min(next_sign - now(), self._lease / 3)))  # fmt: skip

    async def _give_back_overdue(self, calls: Calls) -> None:
        """What has waited so long for a slot waits for a handler that blocks the worker's loop: others may take it."""
        late = self._overdue(now() - self._lease / 6)
        if not late:
            return
        for run in late:
            run.gone = run.ended = True
        try:
            await calls.release([Release(run.task_id, run.token, reason="the event loop is blocked") for run in late])
        except (*TROUBLE, asyncpg.PostgresError) as error:  # their leases run out
            log.warning("release_failed", tasks=len(late), error=error_text(words(error)))
        else:
            log.info("tasks_given_back", tasks=len(late), reason="the event loop is blocked")
        for run in late:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                self._worker_loop.call_soon_threadsafe(self._over, run)

    async def _renew(self, calls: Calls, held: list[Run]) -> None:
        sent = now()
        keys = [(run.claimed.task_id, run.claimed.token) for run in held]
        verdicts = await calls.renew(self._worker_id, keys, self._lease, draining=self._draining)
        again: set[str] = set()
        for run in held:
            verdict = verdicts.get((run.claimed.task_id, run.claimed.token))
            if verdict in ("done", "cancel"):
                run.renewed_at, run.lease_until = sent, sent + self._lease
                if verdict == "cancel":
                    self._tell([run], "cancelled")
            elif verdict == "busy":
                again.add(run.claimed.task_id)
            elif verdict == "stale" and not run.ended:
                # one that has ended may just have been settled: its own write tells what became of it
                run.gone = True
                if run.reason is None:
                    log.warning("lease_lost", task_id=run.claimed.task_id, token=run.token, reason="stale")
                self._tell([run], "lease_lost")
        if again:
            self._check_later(again)

    def _check_later(self, task_ids: set[str]) -> None:
        asyncio.get_running_loop().call_later(min(1.0, self._lease / 10), self._check_these, task_ids)

    def _check_these(self, task_ids: set[str]) -> None:
        assert self._poke is not None
        self._check |= task_ids
        self._poke.set()

    async def _watch(self) -> None:
        """Stop calls whose lease is about to end: whatever the database does, two must not run at once."""
        while True:
            at = now()
            nearest = at + self._lease / 4
            for run in list(self._runs.values()):
                if run.ended or run.reason is not None:
                    continue
                stop_at = run.lease_until - self._margin
                if at >= stop_at:
                    self._tell([run], "lease_lost")
                    log.warning("lease_lost", task_id=run.claimed.task_id, token=run.token, reason="not_renewed")
                else:
                    nearest = min(nearest, stop_at)
            await asyncio.sleep(max(0.02, nearest - now()))

    def _tell(self, runs: Iterable[Run], reason: str) -> None:
        for run in runs:
            if run.reason is None:
                self._worker_loop.call_soon_threadsafe(self._stop_run, run, reason)
                if not run.is_async:
                    run.reason = reason  # its thread sees it even while the worker's loop is blocked

    def _check_soon(self, task_id: str) -> None:
        """Somebody cancelled this task: ask at once whether it is one of ours."""
        if any(run.claimed.task_id == task_id for run in list(self._runs.values())):
            self._check_these({task_id})

    async def _pause(self, seconds: float) -> None:
        assert self._poke is not None
        try:
            async with asyncio.timeout(seconds):
                await self._poke.wait()
        except TimeoutError:
            pass
        self._poke.clear()
