"""How long single calls of the protocol take on one connection of asyncpg: medians, in milliseconds."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import Database, connect

TIMES = 200
LEASE = 60.0
FIRST_GET = "get, the row's first"


async def call_times(dsn: str, ids: Sequence[str] = ()) -> dict[str, float]:
    """`ids`: hundreds of finished tasks to get; else those of this run. Needs thousands of pending tasks."""
    connection = await connect(Database(dsn), "bench calls")
    calls = Calls(connection)
    worker = f"bench-{time.time_ns()}"
    times: dict[str, list[float]] = defaultdict(list)
    done: list[str] = []

    def note(name: str, begun: float) -> None:
        times[name].append((time.perf_counter() - begun) * 1000)

    try:
        for _ in range(TIMES):
            for size in (1, 20):
                begun = time.perf_counter()
                answer = await calls.claim(worker, size, [], LEASE, ["noop"])
                note(f"claim of {size}", begun)
                results = [(task.task_id, task.token, "null") for task in answer.tasks]
                if len(results) != size:
                    raise RuntimeError(f"{answer.outcome}: {len(results)} of {size} tasks were claimed")
                begun = time.perf_counter()
                await calls.complete(results)
                note(f"complete of {size}", begun)
                done += [task_id for task_id, _, _ in results]
            begun = time.perf_counter()
            await calls.recover()
            note("recover", begun)
        chosen = random.sample(ids or done, k=TIMES)
        for name in (FIRST_GET, "get"):  # the first one may have to read from the disk
            for task_id in chosen:
                begun = time.perf_counter()
                rows = await calls.get([task_id])
                note(name, begun)
                if task_id not in rows:
                    raise RuntimeError(f"{task_id} is not there")
    finally:
        await connection.close()
    return {name: median(values) for name, values in times.items()}
