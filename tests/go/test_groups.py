"""Every kind of limit at once, seen at the provider: a mixed fleet, tenants, models, a rate, a provider that throttles.

TASKGATE_TEST_GROUP_SECONDS=60 makes a minute of traffic of it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.protocol.calls import NewTask
from tests.processes import Table, WorkerProcess, eventually
from tests.worker_fixtures import start_worker, table

__all__ = ["start_worker", "table"]

GLOBAL, PER_MODEL, PER_TENANT = 20, 3, 5
PER_MINUTE, BURST = 7200.0, 20.0
SECONDS = float(os.environ.get("TASKGATE_TEST_GROUP_SECONDS", "6"))
TENANTS = [f"t{n}" for n in range(8)]
MODELS = ["m1", "m2", "m3", "m4"]


def most_at_once(calls: Iterable[tuple[float, float]]) -> int:
    """How many of the spans (start, end) overlap at most."""
    steps = sorted([(start, 1) for start, _ in calls] + [(end, -1) for _, end in calls])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def most_beyond(starts: list[float], rate: float) -> float:
    """The largest number of starts in any window, less what `rate` a second brings in it."""
    starts = sorted(starts)
    most, lowest = 0.0, float("inf")
    for index, start in enumerate(starts):  # for windows from start[i] to start[j]: (j - i + 1) - rate * (tj - ti)
        lowest = min(lowest, index - rate * start)
        most = max(most, index + 1 - rate * start - lowest)
    return most


def longest_below(limit: int, spans: list[tuple[float, float]], after: float, until: float) -> float:
    """Seconds of the longest stretch between `after` and `until` with fewer than `limit` spans open."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    now, since, longest = 0, after, 0.0
    for at, step in steps:
        before, now = now, now + step
        if before < limit <= now and after < at < until:
            longest = max(longest, at - max(since, after))
        elif now < limit <= before:
            since = at
    return longest


def fleet(provider: FakeProvider, start: Callable[..., WorkerProcess], go_program: str) -> None:
    values = {
        "OPENAI_BASE_URL": provider.url + "/v1",
        "OPENAI_API_KEY": "k",
        "TASKGATE_LEASE_SECONDS": "30",
        "app": None,
    }
    for program in (None, None, go_program):
        start("llm", program=program, TASKGATE_SLOTS="12", **values)


async def add(table: Table, wanted: list[tuple[str, str]]) -> list[str]:
    """A task for each (tenant, model)."""
    tasks = [
        NewTask(
            f"{tenant}-{model}-{uuid.uuid4().hex[:8]}",
            "llm",
            json.dumps({"prompt": f"{tenant} {model}", "model": model}),
            options=json.dumps({"tenant": tenant}),
        )
        for tenant, model in wanted
    ]
    await table.calls.enqueue(tasks)
    return [task.task_id for task in tasks]


async def test_each_limit_holds_at_the_provider(
    table: Table, start_worker: Callable[..., WorkerProcess], go_program: str
) -> None:
    await table.calls.set_limit(GLOBAL)
    await table.calls.set_group_limit("model", "m1", PER_MODEL)
    await table.calls.set_group_limit("tenant", "*", PER_TENANT)
    await table.calls.set_rate("type", "llm", requests=PER_MINUTE, requests_burst=BURST)
    count = int(PER_MINUTE / 60 * SECONDS)
    ids = await add(table, [(TENANTS[n % 8], MODELS[n // 8 % 4]) for n in range(count)])
    async with FakeProvider(FakeProviderOptions(latency=0.12)) as provider:
        fleet(provider, start_worker, go_program)
        rows = await table.final(ids, seconds=120 + 3 * SECONDS)
        seen = provider.journal.log()
        assert provider.journal.max_in_flight <= GLOBAL
    assert Counter(row["status"] for row in rows.values()) == {"completed": count}
    spans: dict[str, list[tuple[float, float]]] = {}
    for call in seen:
        tenant, model = call["prompt"].split()
        for group in (tenant, model):
            spans.setdefault(group, []).append((call["time_in"], call["time_out"]))
    assert {tenant: most_at_once(spans[tenant]) <= PER_TENANT for tenant in TENANTS} == dict.fromkeys(TENANTS, True)
    assert most_at_once(spans["m1"]) <= PER_MODEL
    started = [row["started_at"].timestamp() for row in rows.values()]
    assert most_beyond(started, PER_MINUTE / 60) <= BURST + 1e-3, "counted at claim, by the database's clock"
    arrived = [call["time_in"] for call in seen]
    print(
        f"{count} calls in {max(started) - min(started):.1f} s; at once {provider.journal.max_in_flight}; beyond the"
        f" rate {most_beyond(started, PER_MINUTE / 60):.1f} at claim, {most_beyond(arrived, PER_MINUTE / 60):.1f} at"
        f" the provider, of {BURST:g}"
    )


async def test_nothing_goes_to_a_key_in_its_cool_down(
    table: Table, start_worker: Callable[..., WorkerProcess], go_program: str
) -> None:
    await table.calls.set_limit(GLOBAL)
    ids = await add(table, [("", "m2")] * 60)
    async with FakeProvider(FakeProviderOptions(latency=0.05)) as provider:
        provider.chooser.set_faults({"faults": [{"fault": "429", "retry_after": 4, "times": 1}]})
        fleet(provider, start_worker, go_program)
        rows = await table.final(ids, seconds=120)
        seen: list[dict[str, Any]] = provider.journal.log()
    (throttled,) = [call for call in seen if call["status"] == 429]
    noted = await table.sql.fetchval("SELECT max(finished_at) FROM task_attempts WHERE error_code = 'throttled'")
    begun = noted + timedelta(seconds=1)  # a claim sees it once that is committed
    until = noted + timedelta(seconds=4)
    inside = [row["task_id"] for row in rows.values() if begun < row["started_at"] < until]
    assert not inside, "claimed while its provider's key cooled down"
    assert len(seen) == 61, "one call was throttled and sent again"
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert {row["attempts"] for row in rows.values()} == {1}, "a throttled attempt costs none"
    assert throttled["n"] <= GLOBAL


async def test_full_groups_leave_no_slot_free(
    table: Table, start_worker: Callable[..., WorkerProcess], go_program: str
) -> None:
    await table.calls.set_limit(GLOBAL)
    await table.calls.set_group_limit("model", "m1", PER_MODEL)
    await table.calls.set_group_limit("tenant", "*", PER_TENANT)
    front = await add(table, [(TENANTS[n % 8], "m1") for n in range(200)])
    count = int(GLOBAL / 0.12 * SECONDS)
    ids = front + await add(table, [(TENANTS[n % 8], "m2") for n in range(count)])
    async with FakeProvider(FakeProviderOptions(latency=0.12)) as provider:
        fleet(provider, start_worker, go_program)
        rows = await table.final(ids, seconds=120 + 3 * SECONDS)
        assert provider.journal.max_in_flight == GLOBAL, "they were all in use, with a full group in front"
    spans = [(row["started_at"].timestamp(), row["finished_at"].timestamp()) for row in rows.values()]
    starts = sorted(start for start, _ in spans)
    others = sorted(rows[each]["started_at"].timestamp() for each in ids[len(front) :])
    after, until = starts[0] + 2, others[-GLOBAL]
    longest = longest_below(GLOBAL, spans, after, until)
    print(f"longest time with a slot free, of {until - after:.1f} s: {longest * 1000:.0f} ms")
    assert most_at_once(spans) == GLOBAL


async def test_ten_tasks_beside_a_hundred_thousand(
    table: Table, start_worker: Callable[..., WorkerProcess], go_program: str
) -> None:
    length = 1.0
    await table.calls.set_limit(GLOBAL)
    for _ in range(10):
        await add(table, [("large", "m2")] * 10_000)
    async with FakeProvider(FakeProviderOptions(latency=length)) as provider:
        fleet(provider, start_worker, go_program)

        async def all_run() -> bool:
            return provider.journal.in_flight == GLOBAL

        await eventually("the large tenant to have every slot", all_run)
        ids = await add(table, [("small", "m2")] * 10)
        rows = await table.final(ids)
        posted = min(row["created_at"] for row in rows.values())
        last = max(row["started_at"] for row in rows.values())
        before = await table.sql.fetchval(
            "SELECT count(*) FROM tasks WHERE tenant = 'large' AND started_at > $1 AND started_at < $2", posted, last
        )
    took = (max(row["finished_at"] for row in rows.values()) - posted).total_seconds() / length
    print(f"ten tasks took {took:.2f} task lengths, ideal is 1; {before} of the other tenant began meanwhile")
    assert before <= GLOBAL, "no more than one round of the other tenant went before the last of the ten"
