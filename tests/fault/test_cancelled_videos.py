"""A cancelled video is cancelled at the provider, though not at the first try or by the first worker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from taskgate.local.fake_provider import FakeProvider
from tests.processes import Table, WorkerProcess, eventually

FOR_EVER = 100_000


@pytest.fixture
async def studio() -> AsyncIterator[FakeProvider]:
    """A provider that never ends a video."""
    async with FakeProvider() as provider:
        provider.script("ever", {"polls": FOR_EVER})
        yield provider


def environment(studio: FakeProvider) -> dict[str, str]:
    return {
        "GEMINI_BASE_URL": studio.url,
        "GEMINI_API_KEY": "k",
        "TASKGATE_VEO_POLL_SECONDS": "0.2",
        "TASKGATE_GRACE_SECONDS": "0",
    }


async def opened(table: Table, **options: Any) -> str:
    """A task whose operation a worker follows."""
    (task_id,) = await table.add("veo", [{"prompt": "ever."}], **options)

    async def is_open() -> bool:
        found = "SELECT EXISTS (SELECT FROM task_attempts WHERE task_id = $1 AND operation IS NOT NULL)"
        return bool(await table.sql.fetchval(found, task_id))

    await eventually("its operation", is_open)
    return task_id


async def cancelled(table: Table, task_id: str, studio: FakeProvider) -> None:
    row = (await table.final([task_id]))[task_id]
    assert (row["status"], row["error"]) == ("failed", "cancelled")
    assert [each.cancelled for each in studio.video.operations.values()] == [True]


async def test_a_provider_that_cannot_cancel_it_just_now(
    table: Table, start_worker: Callable[..., WorkerProcess], studio: FakeProvider
) -> None:
    start_worker("veo", app=None, **environment(studio))
    task_id = await opened(table)
    studio.video.cancel_refusals = [503] * FOR_EVER
    assert await table.calls.cancel(task_id) == "cancelling"

    async def waits() -> bool:
        return bool((await table.row(task_id))["status"] == "pending")

    await eventually("it to be given back", waits)
    assert studio.video.counts["cancels_refused"] > 1
    assert await table.calls.cancel(task_id) == "waiting"
    studio.video.cancel_refusals.clear()
    await cancelled(table, task_id, studio)
    history = await table.history(task_id)
    assert history[0] == ("released", "released")
    assert history[-1] == ("cancelled", "cancelled")


async def test_cancelled_before_the_handler_has_begun(
    table: Table, start_worker: Callable[..., WorkerProcess], studio: FakeProvider
) -> None:
    """Between the claim and the handler a worker reads the upstreams."""
    await table.sql.execute(
        "INSERT INTO taskgate.upstreams (name, api, base_url, key_env, models, model)"
        " VALUES ('u', 'interactions', $1, 'GEMINI_API_KEY', '{m}', 'm')",
        studio.url,
    )
    first = start_worker("veo", app=None, **environment(studio))
    task_id = await opened(table, upstream="u")
    first.send(signal.SIGTERM)
    await first.ended()
    beside = await Table.open(table.dsn)
    held = beside.sql.transaction()
    await held.start()
    await beside.sql.execute("LOCK TABLE taskgate.upstreams IN ACCESS EXCLUSIVE MODE")
    second = start_worker("veo", app=None, **environment(studio))
    await table.running(task_id)

    async def reads() -> bool:
        blocked = "SELECT count(*) FROM pg_locks WHERE relation = 'taskgate.upstreams'::regclass AND NOT granted"
        return bool(await table.sql.fetchval(blocked))

    await eventually("it to read the upstreams", reads)
    assert await table.calls.cancel(task_id) == "cancelling"

    async def given_back() -> bool:
        return len(await table.history(task_id)) > 1

    await eventually("it to be given back", given_back)
    await held.rollback()
    beside.sql.terminate()
    await cancelled(table, task_id, studio)
    assert second.process.returncode is None


async def test_cancelled_when_its_time_is_up(
    table: Table, start_worker: Callable[..., WorkerProcess], studio: FakeProvider
) -> None:
    """The time limit ends while the cancel waits for the row."""
    start_worker("veo", app=None, **environment(studio))
    task_id = await opened(table, timeout_seconds=2)
    beside, waiting = await Table.open(table.dsn), await Table.open(table.dsn)
    held = beside.sql.transaction()
    await held.start()
    await beside.sql.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", task_id)
    asked = asyncio.create_task(waiting.calls.cancel(task_id))
    polls = -1
    while polls != studio.video.counts["polls"]:  # its time is up once nobody looks any more
        polls = studio.video.counts["polls"]
        await asyncio.sleep(1)
    await held.rollback()
    assert await asked == "cancelling"
    await cancelled(table, task_id, studio)
    beside.sql.terminate()
    waiting.sql.terminate()
