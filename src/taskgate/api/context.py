"""What the routes share: one object an application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import asyncpg

from taskgate.api.auth import Auth
from taskgate.api.coalescer import Coalescer
from taskgate.api.lanes import Lanes
from taskgate.api.lookup import Lookup
from taskgate.api.metrics import Metrics
from taskgate.api.types import TaskTypes
from taskgate.api.waiter import Waiter
from taskgate.media.backend import Backend, open_backend
from taskgate.media.collect import collect_media
from taskgate.media.place import Place, parse_place
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import Database, connect, pool
from taskgate.protocol.media import MediaCalls
from taskgate.settings import Settings
from taskgate.threads import DaemonThreads
from taskgate.upkeep import DatabaseState

T = TypeVar("T")

POOL_SIZE = 10
COMMAND_SECONDS = 10.0
BULK_LANES, BULK_LANE_SECONDS = 2, 6.0
"""Long transactions at once, so that they never hold all connections; others wait so long for their turn."""
BULK_REFUSAL = "Too many bodies of many tasks are being written; nothing of this one was. Send it again later."
ACTION_LANES = 3
"""Cancels and retries at once: what waits for locked rows must leave connections to the others."""
ACTION_REFUSAL = "Too many cancels and retries wait for rows that somebody holds; nothing was changed. Try again."
NAMED_LANES = 4
"""Submissions at once with an id or an idempotency key of the caller's, which may wait for somebody's open transaction
that holds the same. With the bulk lanes they leave connections to the others, and each tenant leaves one of them, where
there are tenants (API keys)."""
NAMED_REFUSAL = (
    "Too many submissions wait for transactions that hold the same task ids or idempotency keys; nothing was written. "
    "Try again."
)
PARSE_THREADS = 2
"""Daemons: a body that takes long to check cannot keep the process from ending."""


@dataclass(slots=True)
class Context:
    settings: Settings
    database: Database
    pool: asyncpg.Pool[Any]
    calls: Calls
    state: DatabaseState
    auth: Auth
    coalescer: Coalescer
    lookup: Lookup
    waiter: Waiter
    types: TaskTypes
    metrics: Metrics
    bulk_lanes: Lanes
    action_lanes: Lanes
    named_lanes: Lanes
    threads: DaemonThreads
    stop: asyncio.Event
    media: MediaCalls
    media_place: Place
    media_backend: Backend | None
    schema_trouble: str | None = None
    """Why the schema is out of this program's range, None while it is not."""
    background: list[asyncio.Task[Any]] = field(default_factory=list)

    async def beside(self, function: Callable[[bytes], T], raw: bytes) -> T:
        """The value of `function(raw)`, or its exception, from a thread beside the event loop."""
        outcome: tuple[Any, BaseException | None] = await self.threads.submit(function, raw)
        value, error = outcome
        if error is not None:
            raise error
        return cast(T, value)

    async def collect_media(self) -> int:
        """Deletes media that no task refers to any more; how many."""
        return await collect_media(self.media, self.media_place.name, self.media_backend)

    @property
    def accepted(self) -> int:
        """The status of what was accepted: 202, or 200 as the origin has it."""
        return 200 if self.settings.compat == "origin" else 202

    @property
    def not_found(self) -> int:
        return 200 if self.settings.compat == "origin" else 404


def make_context(settings: Settings) -> Context:
    """Call it inside the event loop. Connects to nothing yet. Raises ValueError without a database URL."""
    database = settings.database
    connections = pool(database, "taskgate api", size=POOL_SIZE, command_timeout=COMMAND_SECONDS)
    calls = Calls(connections, database.schema)
    state = DatabaseState(database.url)
    metrics = Metrics()
    lookup = Lookup(calls.get, state)
    listen = None if database.pooler else (lambda: connect(database, "taskgate api (listen)"))
    coalescer = Coalescer(calls.submit, state, observe=metrics.batch)
    waiter = Waiter(lookup, calls, state, listen, calls.done_channel)
    place = parse_place(settings.media_store)
    metrics.watch(lambda: waiter.waiting, lambda: coalescer.queued)
    return Context(
        settings=settings,
        database=database,
        pool=connections,
        calls=calls,
        state=state,
        auth=Auth(settings),
        coalescer=coalescer,
        lookup=lookup,
        waiter=waiter,
        types=TaskTypes(calls, settings),
        metrics=metrics,
        bulk_lanes=Lanes(BULK_LANES, BULK_REFUSAL, BULK_LANE_SECONDS),
        action_lanes=Lanes(ACTION_LANES, ACTION_REFUSAL),
        named_lanes=Lanes(NAMED_LANES, NAMED_REFUSAL, most=NAMED_LANES - bool(settings.api_keys)),
        threads=DaemonThreads(PARSE_THREADS),
        stop=asyncio.Event(),
        media=MediaCalls(connections, database.schema),
        media_place=place,
        media_backend=open_backend(place),
    )
