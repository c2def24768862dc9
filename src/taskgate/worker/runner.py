"""Runs handlers: starts an attempt for each claimed task, stops it when told to, hands its outcome to the settler.

A handler that does not stop when told to keeps its slot, and its row stays `running` under a renewed lease as
long as the call may still be open: the limit counts calls, not intentions. After as long again as its time limit
the row is let go and only the slot here stays counted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls, ClaimedTask
from taskgate.settings import Settings
from taskgate.task import Handler, Handlers, Paid, PermanentError, Task, Upstream
from taskgate.threads import DaemonThreads
from taskgate.upstreams import UpstreamDirectory
from taskgate.worker.clock import now
from taskgate.worker.outcome import by_itself, given_back, keeps_result, of_error, of_stop, undescribed
from taskgate.worker.results import result_text
from taskgate.worker.run import Run
from taskgate.worker.slots import PATIENCE_SECONDS, Slots

if TYPE_CHECKING:
    from taskgate.media.upload import MediaStore
    from taskgate.worker.settle import Settler

log = get_logger("worker")

MAX_LIMIT = 366 * 86400.0
LARGE_REQUEST = 65_536
STUCK_SECONDS = 5.0
"""A handler that was told to stop so long ago and still runs is reported."""


def lease_margin(lease: float) -> float:
    """Seconds before a lease's end at which a call that could not be renewed is stopped: a tenth, 0.3 at least."""
    return max(0.3, lease / 10)


class Runner:
    """All attempts of one process, by token in `runs`."""

    def __init__(
        self, handlers: Handlers, settings: Settings, calls: Calls, settler: Settler, media: MediaStore | None = None
    ) -> None:
        self.runs: dict[int, Run] = {}
        self.slots = Slots(settings.slots, settings.claim_ahead)
        self.threads = DaemonThreads(settings.slots)
        self._settings = settings
        self._calls = calls
        self._settler = settler
        self._media = media
        self._upstreams = UpstreamDirectory(calls.upstreams)
        self._loop = asyncio.get_running_loop()
        self._margin = lease_margin(settings.lease_seconds)
        self._patience: asyncio.TimerHandle | None = None
        self._handlers = {each.name: (each, _parser(each), _is_async(each)) for each in handlers}

    def ask(self, settled: int = 0) -> tuple[int, int]:
        """For how many tasks to claim: for free slots, and ahead; as if so many were settled already."""
        return self.slots.ask(len(self.runs) - settled)

    def start(self, claimed: ClaimedTask, sent: float) -> None:
        """Begin an attempt, at once or when a slot is free; `sent` is when the claim was sent."""
        handler, parse, is_async = self._handlers[claimed.task_type]
        timeout = _limit(claimed.timeout_seconds, handler.timeout, self._settings.timeout_seconds)
        run = Run(
            claimed, handler, is_async, parse, timeout, sent, self._settings.lease_seconds, self._calls, self._loop,
            self._media,
        )  # fmt: skip
        self.runs[claimed.token] = run
        if self.slots.enter(run):
            run.task = self._loop.create_task(self._occupy(run))

    def bound_wait(self) -> None:
        """What was just claimed shall not wait long for a slot."""
        if self.slots.waiting:
            if self._patience is not None:
                self._patience.cancel()
            self._patience = self._loop.call_later(PATIENCE_SECONDS, self._give_back_waiting)

    def _give_back_waiting(self) -> None:
        for run in self.slots.clear_waiting():
            run.ended = True
            run.reason = run.reason or "no_slot"
            self._end(run, None, None, False)

    async def _occupy(self, run: Run) -> None:
        """Runs one attempt in a slot, and leaves the slot to the next."""
        completed = False
        try:
            completed = await self._attempt(run)
        finally:
            following = self.slots.leave(now() - run.started, completed=completed)
            if following is not None and not self._loop.is_closed():
                following.task = self._loop.create_task(self._occupy(following))

    async def _attempt(self, run: Run) -> bool:
        """Whether its handler came to a result."""
        value, error, text, begun = None, None, None, False
        if run.lease_until - self._margin <= now():
            run.reason = "lease_lost"  # the loop was blocked between claim and start
        if run.reason is None:
            run.started = now()
            run.timer = self._loop.call_later(run.timeout, self.stop, run, "timeout")
            try:
                task = _task(run, await self._upstream(run.claimed) if run.claimed.upstream else None)
                if len(run.claimed.request) > LARGE_REQUEST:
                    run.claimed = replace(run.claimed, request="")  # it is parsed; as text it would stay for hours
                begun = True
                if run.is_async:
                    value = await run.handler.function(task)
                else:
                    value = await self._in_thread(run, task)
                text = result_text(value, self._settings.max_result_bytes)
            except BaseException as caught:  # SystemExit and the like must not end the worker
                if isinstance(caught, GeneratorExit) and self._loop.is_closed():
                    raise  # not the handler's: nothing runs any more
                error = caught
            if run.timer is not None:
                run.timer.cancel()
        run.ended = True
        try:
            self._end(run, text, error, begun)
        except BaseException:  # whatever it is, this attempt must not be `running` for ever
            self._settler.put(run, undescribed(run))
        return text is not None

    async def _upstream(self, claimed: ClaimedTask) -> Upstream:
        """Raises PermanentError `unknown_upstream`, unless there is something to be followed."""
        try:
            return await self._upstreams.get(claimed.upstream)
        except PermanentError:
            if not _has_open_operation(_json(claimed.paid)):
                raise
            return Upstream(claimed.upstream, "")  # what was paid there may be followed when it is put back

    def _end(self, run: Run, text: str | None, error: BaseException | None, begun: bool) -> None:
        if run.settlement is not None:  # let go before
            if run.settled:
                self._settler.finish(run)
            return
        if run.gone:
            self._settler.finish(run)
        elif text is not None and keeps_result(run.reason):
            self._settler.put(run, text)
        elif error is None or (run.reason is not None and not by_itself(error, run.reason)):
            if run.reason == "cancelled" and not begun and _has_open_operation(_json(run.claimed.paid)):
                why = "cancelled before its operation at the provider was taken up"
                self._settler.put(run, given_back(run, "released", why))
            else:
                self._settler.put(run, of_stop(run, run.reason or "lease_lost"))
        else:
            self._settler.put(run, of_error(run, error))

    async def _in_thread(self, run: Run, task: Task[Any]) -> Any:
        """A plain function cannot be interrupted: it is waited for, whatever happens."""
        future = self.threads.submit(run.handler.function, task)
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                if future.done():
                    break
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def stop(self, run: Run, reason: str) -> None:
        """Tell a handler to stop; does nothing for one that has returned. Call it on the loop's thread."""
        if run.ended:
            return
        first = run.reason is None
        if first:
            run.reason = reason
        if run.task is not None and run.is_async and run.started:  # one that has not begun looks at `reason` first
            run.task.cancel()
        if run.timer is not None and run.reason != "timeout":
            run.timer.cancel()
        if first or run.reason == reason:
            self._loop.call_later(STUCK_SECONDS, self._report_stuck, run)
            self._loop.call_later(max(STUCK_SECONDS, run.timeout), self._let_go, run)

    def _report_stuck(self, run: Run) -> None:
        if not run.ended:
            log.warning("handler_stuck", **run.log_fields(), seconds=run.seconds, reason=run.reason)

    def _let_go(self, run: Run) -> None:
        if not run.ended and run.settlement is None and not run.gone:
            self._settler.put(run, of_stop(run, run.reason or "timeout"))


def _limit(*seconds: float | None) -> float:
    """The first that can be a time limit: a row or a handler may say anything."""
    for each in seconds:
        if each is not None and each > 0:
            return min(each, MAX_LIMIT)
    return MAX_LIMIT


def _is_async(handler: Handler) -> bool:
    function: Callable[..., Any] = handler.function
    return handler.is_async or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _parser(handler: Handler) -> Callable[[Any], Any] | None:
    return None if handler.request_type is Any else handler.parse


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _has_open_operation(paid: Any) -> bool:
    operation = None if paid is None else paid.get("operation")
    return operation is not None and not (isinstance(operation, dict) and "closed" in operation)


def _task(run: Run, upstream: Upstream | None) -> Task[Any]:
    claimed = run.claimed
    paid = _json(claimed.paid)
    return Task(
        id=claimed.task_id,
        type=claimed.task_type,
        request=run.request(),
        attempt=claimed.attempt,
        max_attempts=claimed.max_attempts,
        timeout=run.timeout,
        token=claimed.token,
        tenant=claimed.tenant,
        metadata=_json(claimed.metadata),
        checkpoint=_json(claimed.checkpoint),
        traceparent=claimed.traceparent,
        upstream=upstream,
        paid=None if paid is None else Paid(paid.get("account"), paid.get("operation")),
        context=run,
    )
