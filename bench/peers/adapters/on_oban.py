"""oban (Python): uvloop as its own command line has it, a pool of connections, one queue with all the slots."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import uvloop
from oban import Job, Oban, schema, worker
from psycopg_pool import AsyncConnectionPool
from signs import COUNT, DSN, PAUSE, SLOTS, Jobs, chunks, payload, say

jobs = Jobs()


@worker(queue="default")
class Noop:
    async def process(self, job: Job) -> None:
        jobs.ran(job.args["sent"])


async def submit(oban: Oban, pause: float = 0.0) -> None:
    begun = time.perf_counter()
    for _ in range(COUNT):
        await oban.enqueue(Noop.new(payload()))
        if pause:
            await asyncio.sleep(pause)
    say(event="submitted", seconds=time.perf_counter() - begun)


async def bulk(oban: Oban) -> None:
    begun = time.perf_counter()
    for size in chunks():
        await oban.enqueue_many([Noop.new(payload()) for _ in range(size)])
    say(event="submitted", seconds=time.perf_counter() - begun)


async def work(pool: AsyncConnectionPool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Oban(pool=pool, queues={"default": SLOTS}):
        await stop.wait()


async def main() -> None:
    # The settings of oban's own Config.create_pool, which a server started by its command line has.
    async with AsyncConnectionPool(DSN, min_size=1, max_size=10, open=False) as pool:
        match sys.argv[1]:
            case "setup":
                await schema.install(pool)
            case "submit":
                await submit(Oban(pool=pool))
            case "trickle":
                await submit(Oban(pool=pool), PAUSE)
            case "bulk":
                await bulk(Oban(pool=pool))
            case _:
                await work(pool)


uvloop.run(main())
