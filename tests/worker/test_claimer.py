"""The claimer against a real database: lost replies, late replies, and how often it asks."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from tests.processes import Table, eventually
from tests.worker.claiming import claiming


async def test_a_lost_reply_leaks_no_slot(table: Table) -> None:
    ids = await table.add("noop", [{}] * 20)
    async with claiming(table, ["noop"], 4, 600) as calls:
        calls.lose = 3
        rows = await table.final(ids)
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert calls.lose == 0


async def test_an_answer_that_cannot_be_read_ends_nothing(table: Table) -> None:
    with capture_logs() as said:
        async with claiming(table, ["noop"], 4, 600) as calls:
            calls.unreadable = 4
            ids = await table.add("noop", [{}] * 20)
            rows = await table.final(ids)
    assert {row["status"] for row in rows.values()} == {"completed"}
    assert calls.unreadable == 0
    errors = [each["error"] for each in said if each["event"] == "claim_failed"]
    assert errors == ["OverflowError: date value out of range"], "said once"


async def test_a_reply_older_than_half_a_lease_is_not_begun(table: Table) -> None:
    ids = await table.add("noop", [{}] * 2)
    async with claiming(table, ["noop"], 4, 2) as calls:
        calls.delay = 1.2
        rows = await table.final(ids)
        assert len(calls.asked) >= 2
    assert {(row["status"], row["attempts"]) for row in rows.values()} == {("completed", 1)}


async def test_a_large_worker_claims_one_half_while_the_other_runs(table: Table) -> None:
    ids = await table.add("noop", [{}] * 600)
    async with claiming(table, ["noop"], 250, 600) as calls:
        await table.final(ids)
        assert max(calls.asked) == 125


async def test_it_asks_for_all_free_slots_and_not_at_all_without_one(table: Table) -> None:
    ids = await table.add("sleep", [{"seconds": 3600}] * 8)
    async with claiming(table, ["sleep"], 5, 600) as calls:

        async def five_run() -> bool:
            rows = await table.calls.get(ids)
            return bool(sum(row["status"] == "running" for row in rows.values()) == 5)

        await eventually("five to run", five_run)
        await asyncio.sleep(1)
        assert calls.asked == [5]


async def test_an_idle_claimer_waits(table: Table) -> None:
    async with claiming(table, ["noop"], 5, 600) as calls:

        async def asked() -> bool:
            return bool(calls.asked)

        await eventually("a claim", asked)
        await asyncio.sleep(2)
        assert len(calls.asked) <= 3, "no polling faster than TASKGATE_POLL_SECONDS"
