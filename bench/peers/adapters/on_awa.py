"""awa: its queue storage, the direct COPY for many jobs, the Python worker on uvloop."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from dataclasses import dataclass

import awa
import uvloop
from signs import COUNT, DSN, PAUSE, SLOTS, Jobs, chunks, payload, say


@dataclass
class Noop:
    sent: float


jobs = Jobs()
STORAGE = "awa_peer"  # a fresh database has no active queue storage before its first worker, so name one


async def submit(client: awa.AsyncClient, pause: float = 0.0) -> None:
    begun = time.perf_counter()
    for _ in range(COUNT):
        await client.insert(Noop(**payload()), queue="noop")
        if pause:
            await asyncio.sleep(pause)
    say(event="submitted", seconds=time.perf_counter() - begun)


async def bulk(client: awa.AsyncClient) -> None:
    begun = time.perf_counter()
    for size in chunks():
        await client.enqueue_many_copy([Noop(**payload()) for _ in range(size)], queue="noop")
    say(event="submitted", seconds=time.perf_counter() - begun)


async def work(client: awa.AsyncClient) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    @client.task(Noop, queue="noop")
    async def noop(job: awa.Job) -> None:
        jobs.ran(job.args.sent)

    await client.start([("noop", SLOTS)], queue_storage_schema=STORAGE)
    await stop.wait()
    await client.shutdown()


async def main() -> None:
    async with awa.AsyncClient(DSN) as client:
        match sys.argv[1]:
            case "setup":
                await client.migrate()
                await client.install_queue_storage(schema=STORAGE)
            case "submit":
                await submit(client)
            case "trickle":
                await submit(client, PAUSE)
            case "bulk":
                await bulk(client)
            case _:
                await work(client)


uvloop.run(main())
