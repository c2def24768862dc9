"""Who is in a slot, and who waits for one.

Where tasks end sooner than a claim takes, slots are idle most of the time. So a process whose last tasks were short
claims more than its free slots (TASKGATE_CLAIM_AHEAD). What it claims ahead is its own, counts for the limit and has
its lease, but waits until a slot is free. Where that takes longer than PATIENCE_SECONDS it is given back, for others
to take.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskgate.worker.run import Run

SHORT_SECONDS = 0.002
PATIENCE_SECONDS = 0.02
MOST = 200
"""A process holds no more than so many for the sake of claiming ahead: larger claims would not be cheaper by task."""
WORTH = 50
"""With no slot free, fewer than so many are not worth a claim: some slot will be free in a moment."""


class Slots:
    """The slots of one process, which claims up to `per_slot` tasks ahead for each free one.

    The event loop's thread owns it; `overdue` is for the lease keeper's. A run is whose who took it out of `waiting`.
    """

    def __init__(self, slots: int, per_slot: int) -> None:
        self.slots = slots
        self._per_slot = per_slot
        self.waiting: deque[Run] = deque()
        self._running = 0  # handlers
        self._short = 0  # tasks in a row that were

    def ask(self, held: int) -> tuple[int, int]:
        """For how many tasks to claim while `held` are held: for free slots, and ahead.

        That begins carefully, and ends with the first task that is not short.
        """
        free = self.slots - held
        if self.waiting or self._running >= self.slots:
            return max(0, free), 0
        ahead = min(self._short, self._per_slot * (self.slots - self._running), MOST - self.slots) + min(0, free)
        if ahead < (1 if free > 0 else WORTH):
            return max(0, free), 0
        return max(0, free), ahead

    def enter(self, run: Run) -> bool:
        """Whether a slot is free for `run`, which has it now; else it waits for one."""
        if self._running < self.slots:
            self._running += 1
            return True
        self.waiting.append(run)
        return False

    def leave(self, seconds: float, *, completed: bool) -> Run | None:
        """A handler has ended, after so long: the run that has its slot now, if any waits."""
        if not completed or seconds > PATIENCE_SECONDS:
            self._short = 0
        elif seconds > SHORT_SECONDS:
            self._short //= 2
        else:
            self._short += 1
        if (following := self._next()) is None:
            self._running -= 1
        return following

    def clear_waiting(self) -> list[Run]:
        """Those that have waited too long: they are not in line any more."""
        waiting = list(iter(self._next, None))
        if waiting:
            self._short = 0
        return waiting

    def overdue(self, before: float) -> list[Run]:
        """Those that were claimed before then, by clock.now, and are not in line any more: the loop is blocked."""
        late = []
        with contextlib.suppress(IndexError):  # the last one is gone
            while self.waiting[0].renewed_at < before:
                late.append(self.waiting.popleft())
        return late

    def _next(self) -> Run | None:
        try:
            return self.waiting.popleft()
        except IndexError:  # there is none, or the other thread was faster
            return None
