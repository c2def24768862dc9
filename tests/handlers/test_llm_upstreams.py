"""Chats on named upstreams, and chats that must not be paid twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskgate.handlers.llm import llm_handler
from taskgate.handlers.upstream_keys import key_digest
from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.settings import Settings
from taskgate.task import Paid, Upstream
from taskgate.testing import Outcome, run

NOWHERE = "http://127.0.0.1:9/v1"


async def ask(prompt: str, upstream: Upstream | None = None, paid: Paid | None = None, **settings: str) -> Outcome:
    handler = llm_handler(Settings(**{"openai_base_url": NOWHERE, **settings}))  # type: ignore[arg-type]
    return await run(handler, {"prompt": prompt}, upstream=upstream, paid=paid, timeout=20)


async def test_place_key_and_model_of_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_LOCAL", "SECRET")
    async with FakeProvider(FakeProviderOptions(api_key="SECRET")) as provider:
        local = Upstream("local", "openai", base_url=provider.url + "/v1", key_env="KEY_OF_LOCAL", model="old")
        outcome = await ask("Hello", local, model_aliases_text="old=new")
    assert outcome.result["model"] == "new"


async def test_the_key_of_a_file_is_read_for_every_call(tmp_path: Path) -> None:
    file = tmp_path / "key"
    async with FakeProvider(FakeProviderOptions(api_key="SECOND")) as provider:
        local = Upstream("local", "openai", base_url=provider.url + "/v1", key_file=str(file), model="m")
        file.write_text("FIRST\n")
        assert (await ask("Hello", local)).error_code == "provider_auth"
        file.write_text("SECOND\n")
        assert (await ask("Hello", local)).status == "completed"
        file.unlink()
        gone = await ask("Hello", local)
    assert (gone.status, gone.error_code) == ("failed", "not_configured")


async def test_an_upstream_of_another_api() -> None:
    outcome = await ask("Hello", Upstream("films", "vertex"))
    assert (outcome.status, outcome.error_code) == ("failed", "not_configured")
    assert "'films' speaks vertex" in (outcome.error or "")


@pytest.mark.parametrize(
    ("behaviour", "status", "code", "said"),
    [
        ({"ok": "Hi"}, "completed", None, ["intend"]),
        ({"fault": "disconnect"}, "failed", "submit_ambiguous", ["intend"]),
        ({"status": 504}, "failed", "submit_ambiguous", ["intend"]),
        ({"status": 502}, "failed", "submit_ambiguous", ["intend"]),
        ({"status": 499}, "failed", "submit_ambiguous", ["intend"]),
        ({"status": 503}, "retry", "provider_unavailable", ["intend", "withdraw"]),
        ({"fault": "no_finish_reason"}, "failed", "submit_ambiguous", ["intend"]),
        ({"fault": "content_filter"}, "failed", "content_filtered", ["intend"]),
        ({"status": 500}, "retry", "provider_error", ["intend", "withdraw"]),
        ({"fault": "429"}, "throttled", "throttled", ["intend", "withdraw"]),
    ],
)
async def test_once(
    provider: FakeProvider, behaviour: dict[str, object], status: str, code: str | None, said: list[str]
) -> None:
    provider.script("Hello", behaviour)
    url = provider.url + "/v1"
    outcome = await ask("Hello", llm_ambiguous="fail", openai_base_url=url, llm_model="m", openai_api_key="K")
    assert (outcome.status, outcome.error_code) == (status, code)
    assert [name for name, _ in outcome.paid] == said
    assert outcome.paid[0][1]["key"] == key_digest("K")


async def test_once_and_nobody_listens_or_somebody_was_stopped() -> None:
    unreachable = await ask("Hello", llm_ambiguous="fail", llm_model="m")
    assert (unreachable.status, unreachable.error_code) == ("retry", "provider_unavailable")
    assert [name for name, _ in unreachable.paid] == ["intend", "withdraw"]
    stopped = await ask("Hello", paid=Paid({"api": "openai"}), llm_ambiguous="fail", llm_model="m")
    assert (stopped.status, stopped.error) == ("failed", "submit_ambiguous")


async def test_usually_nothing_is_announced(provider: FakeProvider) -> None:
    outcome = await ask("Hello", openai_base_url=provider.url + "/v1", llm_model="m")
    assert outcome.paid == []
