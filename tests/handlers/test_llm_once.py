"""The `llm` handler where a chat must not be paid twice, stopped at the wrong moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskgate.handlers.llm import llm_handler
from taskgate.local.fake_provider import FakeProvider
from taskgate.settings import Settings
from taskgate.task import Task
from tests.handlers.slow_notes import SlowNotes, notes, stopped


@pytest.mark.parametrize("reason", ["cancelled", "shutdown", "timeout"])
@pytest.mark.parametrize("moment", ["intend", "withdraw"])
@pytest.mark.parametrize("failure", ["refused", "unreachable"])
async def test_a_stop_leaves_no_doubt_where_there_is_none(
    provider: FakeProvider, reason: str, moment: str, failure: str
) -> None:
    provider.script("cat", {"status": 503})
    url = f"{provider.url}/v1" if failure == "refused" else "http://127.0.0.1:1/v1"
    handler = llm_handler(Settings(openai_base_url=url, llm_model="m", llm_ambiguous="fail"))
    context = SlowNotes(moment)
    task: Task[Any] = Task("t", "llm", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    running = asyncio.ensure_future(handler.function(task))
    await context.begun.wait()
    context.stop(running, reason)
    await asyncio.sleep(0)
    context.go_on.set()
    await stopped(running)
    assert notes(context) == ["intend", "withdraw"]
    assert provider.journal.requests == (1 if (failure, moment) == ("refused", "withdraw") else 0)
