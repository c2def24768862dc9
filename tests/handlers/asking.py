"""Asking the `llm` handler something, against a fake provider."""

from __future__ import annotations

import json
from typing import Any

from taskgate.handlers.llm import llm_handler
from taskgate.local.fake_provider import FakeProvider
from taskgate.settings import Settings
from taskgate.testing import Outcome, run


async def ask(
    provider: FakeProvider | str, request: dict[str, Any], *, timeout: float = 30, **settings: Any
) -> Outcome:
    url = provider if isinstance(provider, str) else provider.url + "/v1"
    handler = llm_handler(Settings(**{"openai_base_url": url, "llm_model": "fake-echo", **settings}))
    return await run(handler, request, timeout=timeout)


def body_of(provider: FakeProvider, n: int = 1) -> Any:
    return json.loads(provider.journal.body(n) or b"null")
