"""The coalescer against the real database: a bad row, an insert that is given up, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from taskgate.api.coalescer import Bounds, Coalescer, NotNow, NotWritten, Overloaded, Uncertain
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.connect import Database, pool
from taskgate.upkeep import DatabaseState
from tests.api.api_process import eventually

BAD = '{"n":1e200000}'  # JSON, but more than a jsonb number can be


@pytest.fixture
async def connections(database: str) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with pool(Database(database), "coalescer", size=5, command_timeout=30) as connections:
        yield connections


class Recorder:
    """Counts the rows of each insert on its way to the real one."""

    def __init__(self, connections: asyncpg.Pool[Any]) -> None:
        self._calls = Calls(connections)
        self.sizes: list[int] = []

    async def began(self) -> bool:
        return bool(self.sizes)

    async def enqueue(self, tasks: Sequence[NewTask], /) -> list[str]:
        self.sizes.append(len(tasks))
        return await self._calls.submit(tasks)


def task(name: str, request: str = '{"prompt":"x"}') -> NewTask:
    return NewTask(name, "llm", request)


async def written(calls: Calls) -> set[str]:
    return {row["task_id"] for row in await calls.page(limit=10_000)}


async def test_concurrent_tasks_share_inserts(connections: asyncpg.Pool[Any], calls: Calls) -> None:
    recorder = Recorder(connections)
    coalescer = Coalescer(recorder.enqueue, DatabaseState(), Bounds(rows=20))
    await coalescer.submit(task("alone"))
    assert recorder.sizes == [1]
    names = {f"t{number}" for number in range(100)}
    await asyncio.gather(*(coalescer.submit(task(name)) for name in sorted(names)))
    assert await written(calls) == {"alone", *names}
    assert len(recorder.sizes) < 40
    assert max(recorder.sizes) == 20


async def test_newcomers_gather_while_an_insert_is_under_way(
    connections: asyncpg.Pool[Any], connection: asyncpg.Connection[Any], calls: Calls
) -> None:
    recorder = Recorder(connections)
    coalescer = Coalescer(recorder.enqueue, DatabaseState(), Bounds(patience=30))
    block = connection.transaction()
    await block.start()
    await connection.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
    first = asyncio.create_task(coalescer.submit(task("first")))
    await eventually(recorder.began)
    others = [asyncio.create_task(coalescer.submit(task(f"t{number}"))) for number in range(30)]
    await asyncio.sleep(0.05)
    assert recorder.sizes == [1]
    await block.rollback()
    await asyncio.gather(first, *others)
    assert recorder.sizes == [1, 30]


async def test_a_slow_insert_does_not_hold_up_the_others_for_long(
    connections: asyncpg.Pool[Any], connection: asyncpg.Connection[Any]
) -> None:
    recorder = Recorder(connections)
    coalescer = Coalescer(recorder.enqueue, DatabaseState())
    block = connection.transaction()
    await block.start()
    # an insert of the same id waits for this one's end
    await Calls(connection).enqueue([task("held")])
    held = asyncio.create_task(coalescer.submit(task("held")))
    await eventually(recorder.began)
    await asyncio.wait_for(coalescer.submit(task("free")), 30)
    assert not held.done()
    await block.commit()
    await held


async def test_a_bad_row_never_fails_its_neighbours(connections: asyncpg.Pool[Any], calls: Calls) -> None:
    recorder = Recorder(connections)
    coalescer = Coalescer(recorder.enqueue, DatabaseState())
    bad = {7, 8, 31}
    results = await asyncio.gather(
        *(coalescer.submit(task(f"t{n}", BAD if n in bad else '{"a":1}')) for n in range(40)), return_exceptions=True
    )
    assert {n for n, result in enumerate(results) if isinstance(result, NotWritten)} == bad
    assert [result for n, result in enumerate(results) if n not in bad] == [None] * 37
    assert await written(calls) == {f"t{n}" for n in range(40) if n not in bad}
    assert recorder.sizes[0] == 40


async def test_a_statement_timeout_writes_nothing_and_says_so(
    database: str, connection: asyncpg.Connection[Any], calls: Calls
) -> None:
    name = (await connection.fetchval("SELECT current_database()")) or ""
    await connection.execute(f'ALTER DATABASE "{name}" SET statement_timeout = 300')
    async with pool(Database(database), "coalescer", size=5, command_timeout=30) as connections:
        coalescer = Coalescer(Recorder(connections).enqueue, DatabaseState())
        async with connection.transaction():
            await connection.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
            results = await asyncio.gather(
                *(coalescer.submit(task(f"t{n}")) for n in range(10)), return_exceptions=True
            )
        assert [type(result) for result in results] == [NotNow] * 10
        assert await written(calls) == set()
        await coalescer.submit(task("after"))
        assert await written(calls) == {"after"}


class CancelledBehindTheCommit:
    """The real connections, where a cancel meets each call behind its commit; if `deaf`, each that follows as well."""

    def __init__(self, connections: asyncpg.Pool[Any], deaf: bool) -> None:
        self._connections = connections
        self._deaf = deaf
        self.met = 0

    def __getattr__(self, name: str) -> Any:
        async def call(query: str, *args: Any) -> Any:
            answer = await getattr(self._connections, name)(query, *args)
            if query.startswith("CALL") or self._deaf:
                self.met += 1
                raise asyncpg.QueryCanceledError
            return answer

        return call


async def test_a_cancel_behind_the_commit_is_not_taken_for_a_refusal(
    connections: asyncpg.Pool[Any], calls: Calls
) -> None:
    cancelled = CancelledBehindTheCommit(connections, deaf=False)
    await Coalescer(Calls(cancelled).submit, DatabaseState()).submit(task("a"))
    assert cancelled.met == 1
    assert await written(calls) == {"a"}


async def test_who_cannot_ask_whether_it_was_written_does_not_say_that_it_was_not(
    connections: asyncpg.Pool[Any], calls: Calls
) -> None:
    cancelled = CancelledBehindTheCommit(connections, deaf=True)
    with pytest.raises(Uncertain):
        await Coalescer(Calls(cancelled).submit, DatabaseState()).submit(task("a"))
    assert await written(calls) == {"a"}


async def test_a_second_try_that_is_refused_tells_nothing_of_the_first(
    connections: asyncpg.Pool[Any], calls: Calls
) -> None:
    tries = 0

    async def lost_and_refused(tasks: Sequence[NewTask], /) -> list[str]:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise asyncpg.DiskFullError
        await calls.submit(tasks)
        raise asyncpg.ConnectionDoesNotExistError

    with pytest.raises(Uncertain):
        await Coalescer(lost_and_refused, DatabaseState()).submit(task("a"))
    assert await written(calls) == {"a"}


async def test_too_much_is_refused_at_once(
    connections: asyncpg.Pool[Any], connection: asyncpg.Connection[Any], calls: Calls
) -> None:
    coalescer = Coalescer(Recorder(connections).enqueue, DatabaseState(), Bounds(rows=2, lanes=1, queued_rows=5))
    async with connection.transaction():
        await connection.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
        tasks = [asyncio.create_task(coalescer.submit(task(f"t{n}"))) for n in range(20)]
        refused = 0
        while refused < 13:  # 2 under way and 5 queued, or before the first insert began 5 queued only
            await asyncio.sleep(0.01)
            refused = sum(1 for each in tasks if each.done())
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), Overloaded}
    assert await written(calls) == {f"t{n}" for n, result in enumerate(results) if result is None}


async def test_bytes_are_bounded_too(connections: asyncpg.Pool[Any], calls: Calls) -> None:
    recorder = Recorder(connections)
    coalescer = Coalescer(recorder.enqueue, DatabaseState(), Bounds(bytes=10_000))
    large = '{"prompt":"' + "x" * 6000 + '"}'
    huge = '{"prompt":"' + "x" * 20_000 + '"}'
    await asyncio.gather(*(coalescer.submit(task(f"t{n}", huge if n == 3 else large)) for n in range(6)))
    assert recorder.sizes == [1] * 6
    assert len(await written(calls)) == 6
