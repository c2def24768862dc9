"""Bounds on what may hold a database connection for long, so that the others always find one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from taskgate.api.problems import unavailable

LANE_SECONDS = 3.0
"""So long one waits for a turn behind others."""


@dataclass(eq=False, slots=True)
class _Turn:
    tenant: str
    key: str | None
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class Lanes:
    """`count` turns at once; who waits `seconds` for one in vain gets 503 `busy` with `refusal` as its detail.

    One tenant has `most` of them at once, all by default. Of those who would only wait for each other anyway, since
    tenant and key are the same, one has a turn at once.
    """

    def __init__(self, count: int, refusal: str, seconds: float = LANE_SECONDS, *, most: int | None = None) -> None:
        self._free = count
        self._most = count if most is None else most
        self._refusal = refusal
        self._seconds = seconds
        self._by_tenant: Counter[str] = Counter()
        self._keys: set[tuple[str, str]] = set()
        self._waiting: dict[_Turn, None] = {}  # in the order in which they came; none of them may begin

    @asynccontextmanager
    async def turn(self, tenant: str = "", key: str | None = None) -> AsyncIterator[None]:
        """Raises Problem."""
        mine = _Turn(tenant, key)
        if self._may_begin(mine):
            self._begin(mine)
        else:
            self._waiting[mine] = None
        try:
            if not mine.begun.is_set():
                try:
                    async with asyncio.timeout(self._seconds):
                        await mine.begun.wait()
                except TimeoutError:
                    raise unavailable("busy", self._refusal, seconds=1) from None
            yield
        finally:
            self._end(mine)

    def _may_begin(self, turn: _Turn) -> bool:
        if not self._free or self._by_tenant[turn.tenant] >= self._most:
            return False
        return turn.key is None or (turn.tenant, turn.key) not in self._keys

    def _begin(self, turn: _Turn) -> None:
        self._free -= 1
        self._by_tenant[turn.tenant] += 1
        if turn.key is not None:
            self._keys.add((turn.tenant, turn.key))
        turn.begun.set()

    def _end(self, turn: _Turn) -> None:
        if not turn.begun.is_set():
            del self._waiting[turn]
            return
        self._free += 1
        self._by_tenant[turn.tenant] -= 1
        if not self._by_tenant[turn.tenant]:
            del self._by_tenant[turn.tenant]
        if turn.key is not None:
            self._keys.discard((turn.tenant, turn.key))
        following = next(filter(self._may_begin, self._waiting), None)  # one has left, so one may begin at most
        if following is not None:
            del self._waiting[following]
            self._begin(following)
