"""pgqueuer: asyncpg on uvloop, one direct connection a worker, autovacuum as `pgq autovac` sets it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from signs import COUNT, DSN, LIMIT, PAUSE, SLOTS, Jobs, chunks, payload, say


def body() -> bytes:
    return json.dumps(payload()).encode()


async def setup() -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(DSN)))
    await queries.install()
    await queries.optimize_autovacuum()


async def submit(pause: float = 0.0) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(DSN)))
    begun = time.perf_counter()
    for _ in range(COUNT):
        await queries.enqueue("noop", body())
        if pause:
            await asyncio.sleep(pause)
    say(event="submitted", seconds=time.perf_counter() - begun)


async def bulk() -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(DSN)))
    begun = time.perf_counter()
    for size in chunks():
        await queries.enqueue(["noop"] * size, [body() for _ in range(size)], [0] * size)
    say(event="submitted", seconds=time.perf_counter() - begun)


async def work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(DSN)))
    jobs = Jobs()

    @queue.entrypoint("noop", concurrency_limit=LIMIT)
    async def noop(job: Job) -> None:
        jobs.ran(json.loads(job.payload or b"{}")["sent"])

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=SLOTS // 2, max_concurrent_tasks=SLOTS)


VERBS = {"setup": setup, "submit": submit, "bulk": bulk, "work": work, "trickle": lambda: submit(PAUSE)}
uvloop.run(VERBS[sys.argv[1]]())
