"""What a worker with 20 slots takes of the machine's memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from tests.processes import Table, WorkerProcess, eventually

IDLE_MIB, BUSY_MIB = 50, 110


def resident(pid: int) -> float:
    """Resident MiB of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_idle_and_with_20_calls_running(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    async with FakeProvider(FakeProviderOptions(latency=3600)) as provider:
        worker = start_worker(
            "llm",
            app=None,
            TASKGATE_SLOTS="20",
            OPENAI_BASE_URL=f"{provider.url}/v1",
            OPENAI_API_KEY="k",
            TASKGATE_LLM_MODEL="m",
        )
        await worker.event("worker_started")

        async def has_claimed() -> bool:
            return bool(await table.sql.fetchval("SELECT last_value > 1 FROM taskgate.waiting_listeners_until"))

        await eventually("an idle claim", has_claimed)
        idle = resident(worker.pid)
        await table.add("llm", [{"messages": [{"role": "user", "content": f"n {n}"}]} for n in range(20)])

        async def all_call() -> bool:
            return provider.journal.in_flight == 20

        await eventually("20 calls", all_call)
        busy = resident(worker.pid)
        print(f"idle {idle:.1f} MiB, 20 calls {busy:.1f} MiB")
        worker.close()
    assert idle <= IDLE_MIB
    assert busy <= BUSY_MIB
