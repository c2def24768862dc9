"""Slots are refilled by the call that writes results, where there is nothing to claim before.

A worker without a free slot, or at the limit, has more to claim only once results are written. Both in one transaction
are one round trip and one commit instead of two of each (see complete_and_claim).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls, ClaimAnswer, ClaimedTask
from taskgate.worker.clock import now
from taskgate.worker.link import TROUBLE, Backoff
from taskgate.worker.results import error_text, words

if TYPE_CHECKING:
    from taskgate.worker.runner import Runner

log = get_logger("worker")

MOST = 50
"""With more results, or more to claim, it gains more that the database does both at the same time."""
MOST_CHARS = 65_536
"""Results are written to disk while others wait for the claim lock: no more of them."""
PAUSE_SECONDS = (0.1, 60.0)
"""After a refill that failed: from and to, doubling."""

Lack = Literal["", "slot", "room"]
Begin = Callable[[list[ClaimedTask], float, Calls], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Refill:
    """What is claimed along with so many results."""

    results: int
    worker_id: str
    slots: int
    held: list[int]
    lease: float
    types: list[str]
    ahead: int
    sent: float


class Refiller:
    """Between the claimer, which says when it can do nothing by itself, and the settler, which asks before each write.

    While a refill is under way nothing may be claimed beside it: what it brings is not held yet, and would come again.
    """

    def __init__(
        self, worker_id: str, types: list[str], lease: float, runner: Runner, begin: Begin, wake: Callable[[], None]
    ) -> None:
        self._worker_id, self._types, self._lease = worker_id, types, lease
        self._runner = runner
        self._begin = begin
        self._wake = wake
        self._lacks: Lack = ""
        self._pause = Backoff(*PAUSE_SECONDS)
        self._not_before = 0.0
        self._over: int | None = None
        self.under_way = False
        self.freed = 0
        """Slots that were freed while it was under way."""
        self.stopping = False
        self.results_over: Callable[[], int | None] = lambda: None
        """The number of the open connection that writes results. A new one may lead to a database of another schema:
        nothing is claimed over it before the claimer, which looks at that, has claimed again.
        """

    @contextmanager
    def lacking(self, what: Lack) -> Iterator[None]:
        """The claimer waits for that meanwhile; empty: for something else."""
        self._lacks = what
        try:
            yield
        finally:
            self._lacks = ""

    def claimed(self) -> None:
        """The claimer had an answer by itself."""
        self._over = self.results_over()

    def ask(self, results: int, size: int) -> Refill | None:
        """What the call that writes so many results, of so many characters, is to claim along; None: it only writes.

        `done` or `failed` must follow.
        """
        if not self._lacks or self.under_way or self.stopping or results > MOST or size > MOST_CHARS:
            return None
        over = self.results_over()
        if over is None or over != self._over or now() < self._not_before:
            return None
        free, ahead = self._runner.ask(results)
        if free <= 0:
            return None
        free = min(free, MOST)
        self.under_way, self.freed = True, 0
        return Refill(
            results, self._worker_id, free, list(self._runner.runs), self._lease, self._types,
            max(0, min(ahead, 2 * MOST - free)), now(),
        )  # fmt: skip

    async def done(self, refill: Refill, answer: ClaimAnswer, calls: Calls) -> None:
        """What came of it, over `calls`. Where that is less than was freed, the claimer goes on by itself."""
        self._pause.reset()
        begun = 0
        try:
            if answer.tasks and await self._begin(answer.tasks, refill.sent, calls):
                begun = len(answer.tasks)
        finally:
            self._end(begun < max(refill.results, self.freed))

    def failed(self, error: Exception) -> None:
        """Nothing came of it. Results do not wait for what a claim cannot do: they are written alone for a while."""
        if not isinstance(error, TROUBLE):
            log.warning("refill_failed", error=error_text(f"{type(error).__name__}: {words(error)}"))
        self._not_before = now() + self._pause.next()
        self._end(short=True)

    def _end(self, short: bool) -> None:
        self.under_way = False
        if short or (self._lacks == "slot" and sum(self._runner.ask()) > 0):
            self._wake()
