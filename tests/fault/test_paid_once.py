"""Videos are paid once, whatever becomes of workers; and one worker follows a thousand of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from tests.processes import LONG, Table, WorkerProcess, eventually

TASKS = int(os.environ.get("TASKGATE_TEST_VIDEOS", "200"))
OPEN = int(os.environ.get("TASKGATE_TEST_OPEN_VIDEOS", "300"))
"""1000 with a poll interval of 5 s is what README says; fewer and quicker looks say the same sooner."""
POLL = float(os.environ.get("TASKGATE_TEST_POLL_SECONDS", "1"))


async def test_no_kill_makes_a_second_submission(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    await table.calls.set_limit(60)
    pick = random.Random(5)
    async with FakeProvider(FakeProviderOptions(latency=0.05)) as provider:
        settings = {
            "GEMINI_BASE_URL": provider.url,
            "GEMINI_API_KEY": "k",
            "TASKGATE_VEO_POLL_SECONDS": "0.3",
            "TASKGATE_LEASE_SECONDS": "2",
            "TASKGATE_SLOTS": "20",
        }
        provider.chooser.set_scripts({"video": [{"polls": 2, "latency": 0.05, "times": 10 * TASKS}]})

        def start() -> WorkerProcess:
            return start_worker("veo", app=None, **settings)

        ids = await table.add("veo", [{"prompt": f"video {n}."} for n in range(TASKS)])
        workers = [start() for _ in range(3)]
        beside = await Table.open(table.dsn)
        watching = asyncio.create_task(beside.final(ids, 3 * LONG))
        in_the_send = killed = 0
        while not watching.done():
            victim = pick.choice(workers)
            if killed < 10 and victim.events("worker_started"):
                await asyncio.sleep(pick.uniform(0.0, 0.3))
                victim.send(signal.SIGKILL)
                await victim.ended()
                in_the_send += await open_intents(table, victim)
                workers.remove(victim)
                workers.append(start())
                killed += 1
            await asyncio.sleep(pick.uniform(0.2, 0.6))
        rows = await watching
        taken = provider.video.summary()["taken"]
        beside.sql.terminate()
    assert killed == 10, "all was over before the workers were killed"
    ambiguous = [row for row in rows.values() if row["error"] == "submit_ambiguous"]
    completed = [row for row in rows.values() if row["status"] == "completed"]
    assert len(completed) + len(ambiguous) == TASKS, {row["error"] for row in rows.values()}
    assert set(taken.values()) == {1}
    assert len(ambiguous) <= in_the_send, "a task ended ambiguous although no worker died in its send"
    assert len(taken) >= len(completed)


async def open_intents(table: Table, dead: WorkerProcess) -> int:
    """How many tasks a dead worker left with a call announced and no handle."""
    return int(
        await table.sql.fetchval(
            "SELECT count(*) FROM tasks t JOIN task_attempts a ON a.task_id = t.task_id AND a.token = t.claim_token"
            " WHERE t.status = 'running' AND a.submit_intent_at IS NOT NULL AND a.operation IS NULL"
            " AND split_part(t.worker_id, ':', 2) = $1",
            str(dead.pid),
        )
    )


def status(worker: WorkerProcess, name: str) -> int:
    """A number of /proc/PID/status; sizes are KiB."""
    lines = Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory and threads are read from /proc")
async def test_one_worker_follows_many_open_videos(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    await table.calls.set_limit(OPEN)
    async with FakeProvider() as provider:
        provider.chooser.set_scripts({"video": [{"seconds": 3600, "times": OPEN}]})
        ids = await table.add("veo", [{"prompt": f"video {n}."} for n in range(OPEN)])
        worker = start_worker(
            "veo",
            app=None,
            GEMINI_BASE_URL=provider.url,
            GEMINI_API_KEY="k",
            TASKGATE_VEO_POLL_SECONDS=str(POLL),
            TASKGATE_LEASE_SECONDS="10",
            TASKGATE_SLOTS=str(OPEN),
        )

        async def all_open() -> bool:
            return len(provider.video.operations) == OPEN and all(
                each.polls >= 3 for each in provider.video.operations.values()
            )

        await eventually("every video to be looked at", all_open, 3 * LONG)
        before, looks = status(worker, "VmRSS"), provider.video.counts["polls"]

        async def looked_at() -> bool:
            return bool(provider.video.counts["polls"] >= looks + 10 * OPEN)

        await eventually("ten more looks at each", looked_at, 3 * LONG)
        after = status(worker, "VmRSS")
        print(f"{OPEN} open videos, a look at each every {POLL:g} s: RSS {before} KiB, {after} KiB ten looks later")
        assert after - before < 16 * 1024, "its memory grows"
        assert status(worker, "Threads") < 30
        assert {each.polls for each in provider.video.operations.values()} != {0}
        assert not worker.events("lease_lost")
        late = await table.sql.fetchval(
            "SELECT count(*) FROM tasks WHERE status <> 'running' OR locked_until < clock_timestamp()"
        )
        assert late == 0
        assert await table.sql.fetchval("SELECT max(attempts) FROM tasks WHERE task_id = ANY ($1)", ids) == 1
        for operation in provider.video.operations.values():
            operation.made_at = 0.0  # they are done now
        rows = await table.final(ids, 3 * LONG)
        assert {row["status"] for row in rows.values()} == {"completed"}
        assert provider.video.summary()["most_taken"] == 1
