"""At whose cost the `veo` handler works: an operation is resumed on the account that paid for it, and on no other."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.handlers.upstream_keys import key_digest
from taskgate.handlers.video.accounts import account
from taskgate.local.fake_provider import FakeProvider
from taskgate.task import Paid, Upstream
from tests.handlers.video.asking import ask, settings


async def test_the_next_worker_resumes_on_the_same_account(provider: FakeProvider, wire: dict[str, Any]) -> None:
    first = await ask(provider, {"prompt": "A cat"}, **wire)
    paid = Paid(first.paid[0][1], first.paid[1][1])
    again = await ask(provider, {"prompt": "A cat"}, options={"paid": paid}, **wire)
    assert again.status == "completed"
    assert again.result["operation"] == first.result["operation"]
    assert again.paid == []
    assert provider.journal.requests == 1


async def test_an_account_that_is_not_here_is_waited_for_and_then_named(provider: FakeProvider) -> None:
    first = await ask(provider, {"prompt": "A cat"})
    paid = Paid(first.paid[0][1], first.paid[1][1])
    elsewhere = await ask(provider, {"prompt": "A cat"}, options={"paid": paid}, gemini_api_key="ANOTHER")
    assert (elsewhere.status, elsewhere.error_code, elsewhere.after) == ("snoozed", "account_not_here", 10)
    (checkpoint,) = elsewhere.checkpoints
    late = await ask(
        provider,
        {"prompt": "A cat"},
        options={"paid": paid, "checkpoint": checkpoint},
        gemini_api_key="ANOTHER",
        account_wait_seconds=0,
    )
    assert (late.status, late.error_code) == ("failed", "account_not_configured")
    assert key_digest("KEY") in (late.error or "")
    assert provider.journal.requests == 1


async def test_the_wait_for_an_account_is_over_once_it_is_here(provider: FakeProvider) -> None:
    first = await ask(provider, {"prompt": "A cat"})
    paid = Paid(first.paid[0][1], first.paid[1][1])
    here = await ask(
        provider, {"prompt": "A cat"}, options={"paid": paid, "checkpoint": {"account_missing_since": 1.0}}
    )
    assert here.status == "completed"
    assert here.checkpoints == [{}]
    again = await ask(provider, {"prompt": "A cat"}, options={"paid": paid, "checkpoint": {}}, gemini_api_key="ANOTHER")
    assert (again.status, again.error_code) == ("snoozed", "account_not_here")


async def test_the_upstream_of_an_operation_was_removed(provider: FakeProvider) -> None:
    """The worker hands on its name alone; the environment's own account does not stand in for it."""
    first = await ask(provider, {"prompt": "A cat"})
    paid = Paid({**first.paid[0][1], "upstream": "gone"}, first.paid[1][1])
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid, "upstream": Upstream("gone", "")})
    assert (outcome.status, outcome.error_code) == ("snoozed", "account_not_here")
    assert "upstream 'gone'" in (outcome.error or "")


async def test_what_is_over_is_not_resumed(provider: FakeProvider) -> None:
    paid = Paid({"api": "interactions"}, {"closed": "retried"})
    outcome = await ask(provider, {"prompt": "A cat"}, options={"paid": paid})
    assert outcome.status == "completed"
    assert provider.journal.requests == 1


async def test_upstreams_say_where_with_which_key_and_model(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_ACME", "SECRET")
    upstream = Upstream("acme", "gemini", base_url=provider.url, key_env="KEY_OF_ACME", model="veo-acme")
    outcome = await ask(
        provider, {"prompt": "A cat"}, options={"upstream": upstream}, gemini_base_url="http://127.0.0.1:9"
    )
    assert outcome.status == "completed", outcome
    assert (outcome.result["model"], outcome.result["api"]) == ("veo-acme", "gemini")
    assert outcome.paid[0][1] == {
        "upstream": "acme", "api": "gemini", "endpoint": provider.url, "project": "", "location": "",
        "key": key_digest("SECRET"),
    }  # fmt: skip
    monkeypatch.delenv("KEY_OF_ACME")
    without = await ask(provider, {"prompt": "A cat"}, options={"upstream": upstream})
    assert (without.status, without.error_code) == ("failed", "not_configured")
    assert "KEY_OF_ACME" in (without.error or "")


def test_identities_hold_no_secret_and_tell_accounts_apart(provider: FakeProvider) -> None:
    one, two = (account("gemini", None, settings(provider, gemini_api_key=key)) for key in ("A", "B"))
    assert one.identity() != two.identity()
    assert "'A'" not in repr(one)
    vertex = account("vertex", None, settings(provider, google_project="p", google_location="global"))
    assert vertex.endpoint == "https://aiplatform.googleapis.com"
    assert vertex.identity()["key"] == ""
