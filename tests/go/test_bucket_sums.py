"""The sums of the buckets when workers are killed: nothing is lost, nothing made up, whatever they were at.

TASKGATE_TEST_SEED repeats a run's choices.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.protocol.calls import NewTask
from tests.go.test_groups import most_beyond
from tests.processes import Table, WorkerProcess, eventually
from tests.worker_fixtures import start_worker, table

__all__ = ["start_worker", "table"]

TASKS, LIMIT, SLOTS = 260, 16, 5
PACE, BURST = 60.0, 10.0  # calls a second
SIZE = 10_000_000.0  # a bucket that is never empty
SLOW = 1e-6  # a second: what a bucket gains while the test runs is far less than one
RANDOM_BLOWS = 5
MUTE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}

CLAIM_IN_FLIGHT = (  # one that will find room
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    " AND (SELECT count(*) FROM tasks WHERE status = 'running') < $1"
)
STARTS = (
    "SELECT task_id, outcome, extract(epoch FROM started_at)::float8 AS at,"
    " split_part(worker_id, ':', 2)::integer AS pid FROM task_history ORDER BY token"
)
CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
LEDGER = "SELECT buckets::text FROM claim_ledger ORDER BY id DESC LIMIT 1"


def estimate(request: Mapping[str, Any]) -> int:
    """What claim reserves: a quarter of the request's bytes, and what it allows the answer to have."""
    return math.ceil(len(json.dumps(request)) / 4) + int(request["max_tokens"])


def use(request: Mapping[str, Any]) -> int:
    """What the fake provider counts: the prompt's words, and those of `Fake answer to: PROMPT`."""
    return 2 * len(request["prompt"].split()) + 3


class Fleet:
    """Three Go workers and one in Python, replaced as they are killed."""

    def __init__(self, table: Table, provider: FakeProvider, start: Callable[..., WorkerProcess], go: str) -> None:
        self._table, self._provider, self._start = table, provider, start
        self._programs: list[str | None] = [None, go, go, go]
        self.python: set[int] = set()
        self.workers = [self._new(program) for program in self._programs]

    def _new(self, program: str | None) -> WorkerProcess:
        settings = {
            "OPENAI_BASE_URL": self._provider.url + "/v1",
            "OPENAI_API_KEY": "k",
            "TASKGATE_LEASE_SECONDS": "2",
            "TASKGATE_POLL_SECONDS": "1",
            "TASKGATE_SLOTS": str(SLOTS),
        }
        worker = self._start("llm", app=None, program=program, **settings)
        if program is None:
            self.python.add(worker.pid)
        return worker

    async def started(self) -> None:
        for worker in self.workers:
            await worker.event("worker_started")

    async def kill(self, victims: list[int], *, claiming: bool) -> None:
        """SIGKILL to the workers at these places, and new ones; `claiming`: while a claim waits for its lock."""
        if claiming:
            await self._table.sql.execute("SELECT pg_advisory_lock(lock_key())")

            async def waits() -> bool:
                return bool(await self._table.sql.fetchval(CLAIM_IN_FLIGHT, LIMIT))

            await eventually("a claim in flight", waits, every=0.002)
        for place in victims:
            self.workers[place].send(signal.SIGKILL)
        if claiming:  # PostgreSQL goes on with the claims of the dead
            for place in victims:
                await self.workers[place].ended()
            await self._table.sql.execute("SELECT pg_advisory_unlock(lock_key())")
        for place in victims:
            self.workers[place] = self._new(self._programs[place])


async def blows(table: Table, provider: FakeProvider, fleet: Fleet, dice: random.Random) -> None:
    """All at once with calls in flight, some at random, all at once with claims in flight."""
    everybody = range(len(fleet.workers))

    async def all_run() -> bool:
        running = await table.sql.fetchval("SELECT count(DISTINCT worker_id) FROM tasks WHERE status = 'running'")
        return bool(running == len(fleet.workers) and provider.journal.in_flight)

    await eventually("a call of each worker", all_run, every=0.01)
    await fleet.kill(list(everybody), claiming=False)
    for blow in range(1, RANDOM_BLOWS + 2):
        count = provider.journal.requests + dice.randint(12, 30)

        async def more(count: int = count) -> bool:
            return provider.journal.requests >= count

        await eventually("more calls", more, every=0.002)
        if blow <= RANDOM_BLOWS:
            await fleet.kill(dice.sample(everybody, dice.randint(1, 2)), claiming=dice.random() < 0.5)
    await fleet.kill(list(everybody), claiming=True)


Tasks = Mapping[str, tuple[str, dict[str, Any]]]
"""(tenant, request) by task id."""


def tasks_of(dice: random.Random) -> Tasks:
    """Their answers use less than they were given, or more, or do not say; some fail. Prompts begin with the id."""
    found = {}
    for number in range(TASKS):
        kind = dice.choices(["", "mute", "flaky", "[[fault:400]]"], [85, 5, 5, 5])[0]
        tenant = "tight" if number % 4 == 0 and kind in ("", "flaky") else dice.choice(["roomy", ""])
        task_id = f"task-{uuid.UUID(int=dice.getrandbits(128)).hex}"
        prompt = " ".join(filter(None, [task_id, kind, *["word"] * dice.randint(0, 60)]))
        found[task_id] = (tenant, {"model": "m", "prompt": prompt, "max_tokens": dice.randint(1, 150)})
    return found


async def set_rates(table: Table, sizes: Mapping[str, float]) -> None:
    """Buckets of tokens of these sizes, one of requests, and a pace."""
    await table.calls.set_rate("model", "m", requests=60 * PACE, requests_burst=BURST)
    for group, size in sizes.items():
        scope, name = group.split("/")
        requests = {"requests": 60 * SLOW, "requests_burst": SIZE} if scope == "type" else {"requests": None}
        await table.calls.set_rate(scope, name, tokens=60 * SLOW, tokens_burst=size, **requests)


def used_by(tasks: Tasks, rows: Mapping[str, Any]) -> Counter[str]:
    """Tokens that stay taken, by group: what completed calls used, or what was given where the result does not say."""
    used: Counter[str] = Counter()
    for task_id, (tenant, request) in tasks.items():
        row, failed = rows[task_id], "[[fault:400]]" in request["prompt"]
        assert row["status"] == ("failed" if failed else "completed"), row["error"]
        if not failed:
            usage = json.loads(row["result"])["usage"]
            assert usage is None if "mute" in request["prompt"] else usage["total_tokens"] == use(request)
            used.update(
                dict.fromkeys(("type/llm", f"tenant/{tenant}"), estimate(request) if usage is None else use(request))
            )
    return used


def seen_at_the_provider(
    starts: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]
) -> set[tuple[str, float]]:
    """The starts (task id, time) that led to a call.

    Each call has one of its own: a window of calls has at most the burst, and what the pace brings in it and in the
    time from a claim to its call.
    """
    assert most_beyond([start["at"] for start in starts], PACE) <= BURST + 1e-3
    of_task: dict[str, list[float]] = {}
    for start in starts:
        of_task.setdefault(start["task_id"], []).append(start["at"])
    latest = [
        (task_id, max(at for at in of_task[task_id] if at <= call["time_in"] + 1e-3))
        for call in calls
        for task_id in [call["prompt"].split()[0]]
    ]
    assert len(set(latest)) == len(calls), "two calls in one attempt"
    way = max(call["time_in"] - at for call, (_, at) in zip(calls, latest, strict=True))
    beyond = most_beyond([call["time_in"] for call in calls], PACE)
    print(f"{len(calls)} calls, {way * 1000:.0f} ms after their claim at most, {beyond:.1f} beyond the pace")
    assert beyond <= BURST + PACE * way + 1e-3
    return set(latest)


async def test_sums_of_the_buckets_after_random_kills(
    table: Table, start_worker: Callable[..., WorkerProcess], go_program: str
) -> None:
    seed = int(os.environ.get("TASKGATE_TEST_SEED") or random.randrange(2**32))
    print(f"TASKGATE_TEST_SEED={seed}")  # shown when it fails
    dice = random.Random(seed)
    tasks = tasks_of(dice)
    tight = [request for tenant, request in tasks.values() if tenant == "tight"]
    sizes = {
        "type/llm": SIZE,
        "tenant/roomy": SIZE,
        # so little more than its calls use that they end only if what killed workers held comes back
        "tenant/tight": float(sum(map(use, tight)) + max(map(estimate, tight))),
    }
    await table.calls.set_limit(LIMIT)
    await set_rates(table, sizes)
    async with FakeProvider(FakeProviderOptions(latency=0.25)) as provider:
        provider.script("mute", {"body": MUTE, "times": 10**6})
        provider.script("flaky", {"status": 500, "times": 10})
        fleet = Fleet(table, provider, start_worker, go_program)
        await fleet.started()
        begun = await table.sql.fetchval(CLOCK)
        await table.calls.enqueue(
            [
                NewTask(task_id, "llm", json.dumps(request), options=json.dumps({"tenant": tenant, "max_attempts": 50}))
                for task_id, (tenant, request) in tasks.items()
            ]
        )
        await blows(table, provider, fleet, dice)
        try:
            rows = await table.final(list(tasks))
        finally:
            print(await table.sql.fetchval(LEDGER))

        async def settled() -> bool:
            return not await table.sql.fetchval("SELECT count(*) FROM token_reservations")

        await eventually("all reservations to be settled", settled)
        calls = provider.journal.log()
    starts = await table.sql.fetch(STARTS)
    buckets = json.loads(await table.sql.fetchval(LEDGER))
    gain = SLOW * (await table.sql.fetchval(CLOCK) - begun)

    used = used_by(tasks, rows)
    wanted = {group: size - used[group] for group, size in sizes.items()}
    off = {group: buckets[group]["tokens"] - left for group, left in wanted.items()}
    off["starts"] = buckets["type/llm"]["requests"] - (SIZE - len(starts))
    print(f"{dict(used)} tokens and {len(starts)} starts; the buckets hold more by {off}")
    assert all(-1e-6 <= each <= gain + 1e-6 for each in off.values()), off
    assert min(used[group] for group in sizes) > 0
    assert len(starts) == sum(row["attempts"] for row in rows.values())

    called = seen_at_the_provider(starts, calls)
    lost = [start for start in starts if start["outcome"] == "lost"]
    in_claim = [start for start in lost if (start["task_id"], start["at"]) not in called]
    print(f"{len(lost)} attempts lost, {len(in_claim)} of them before their call")
    assert {start["pid"] in fleet.python for start in lost} == {True, False}, "workers of both kinds died at work"
    assert 0 < len(in_claim) < len(lost), "claims, and calls, were in flight"
