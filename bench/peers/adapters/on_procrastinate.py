"""procrastinate: psycopg's C speed-ups, uvloop, LISTEN/NOTIFY; a worker claims one job a query, whatever its slots."""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop
from procrastinate import App, PsycopgConnector
from signs import COUNT, DSN, PAUSE, SLOTS, Jobs, chunks, payload, say

app = App(connector=PsycopgConnector(conninfo=DSN, max_size=20))
jobs = Jobs()


@app.task(name="noop")
async def noop(sent: float) -> None:
    jobs.ran(sent)


async def submit(pause: float = 0.0) -> None:
    begun = time.perf_counter()
    for _ in range(COUNT):
        await noop.defer_async(**payload())
        if pause:
            await asyncio.sleep(pause)
    say(event="submitted", seconds=time.perf_counter() - begun)


async def bulk() -> None:
    begun = time.perf_counter()
    for size in chunks():
        await noop.batch_defer_async(*[payload() for _ in range(size)])
    say(event="submitted", seconds=time.perf_counter() - begun)


async def main() -> None:
    async with app.open_async():
        match sys.argv[1]:
            case "setup":
                await app.schema_manager.apply_schema_async()
            case "submit":
                await submit()
            case "trickle":
                await submit(PAUSE)
            case "bulk":
                await bulk()
            case _:
                await app.run_worker_async(concurrency=SLOTS, delete_jobs="never")


uvloop.run(main())
