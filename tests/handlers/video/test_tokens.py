"""Access tokens: service accounts, workload identity, and that a stale one is replaced."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from taskgate.handlers.video.tokens import SCOPES, Tokens
from taskgate.local.fake_provider import FakeProvider
from taskgate.task import PermanentError, Retry
from tests.handlers.video.asking import service_account


def claims_of(jwt: str) -> dict[str, object]:
    part = jwt.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


async def test_a_service_account_signs_for_its_token(provider: FakeProvider, tmp_path: Path) -> None:
    tokens = Tokens(str(service_account(tmp_path, provider)))
    assert await tokens.headers() == {"authorization": "Bearer fake-token"}
    ((path, body),) = provider.tokens.requests
    form = parse_qs(body.decode())
    assert (path, form["grant_type"]) == ("/token", ["urn:ietf:params:oauth:grant-type:jwt-bearer"])
    claims = claims_of(form["assertion"][0])
    assert claims["iss"] == "robot@p.iam.gserviceaccount.com"
    assert claims["scope"] == SCOPES[0]
    assert claims["aud"] == "https://oauth2.googleapis.com/token"  # Google says so, wherever token_uri is


async def test_many_calls_share_one_token_until_it_is_stale(provider: FakeProvider, tmp_path: Path) -> None:
    tokens = Tokens(str(service_account(tmp_path, provider)))
    await asyncio.gather(*(tokens.headers() for _ in range(20)))
    assert len(provider.tokens.requests) == 1
    tokens.forget()
    await tokens.headers()
    assert len(provider.tokens.requests) == 2


async def test_a_token_that_is_about_to_end_is_refreshed(provider: FakeProvider, tmp_path: Path) -> None:
    provider.tokens.seconds = 60  # less than google-auth keeps in hand
    tokens = Tokens(str(service_account(tmp_path, provider)))
    await tokens.headers()
    await tokens.headers()
    assert len(provider.tokens.requests) == 2


async def test_workload_identity_exchanges_the_token_of_a_file(provider: FakeProvider, tmp_path: Path) -> None:
    subject = tmp_path / "subject"
    subject.write_text("token-of-the-cluster", encoding="utf-8")
    audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k"
    file = tmp_path / "external.json"
    content = {
        "type": "external_account",
        "audience": audience,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{provider.url}/v1/token",
        "credential_source": {"file": str(subject)},
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    tokens = Tokens(str(file))
    assert await tokens.headers() == {"authorization": "Bearer fake-token"}
    ((path, body),) = provider.tokens.requests
    form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    assert path == "/v1/token"
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert (form["subject_token"], form["audience"]) == ("token-of-the-cluster", audience)
    subject.write_text("rotated", encoding="utf-8")
    tokens.forget()
    await tokens.headers()
    assert b"subject_token=rotated" in provider.tokens.requests[-1][1]


@pytest.mark.parametrize("content", [None, "not json", "{}", '{"type": "service_account"}'])
async def test_a_file_that_cannot_be_used_is_named(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(PermanentError, match=r"credentials\.json cannot be") as caught:
        await Tokens(str(file)).headers()
    assert caught.value.code == "not_configured"


async def test_no_answer_is_no_verdict(provider: FakeProvider, tmp_path: Path) -> None:
    file = service_account(tmp_path, provider)
    await provider.stop()
    with pytest.raises(Retry) as caught:
        await Tokens(str(file)).headers()
    assert caught.value.code == "provider_unavailable"
