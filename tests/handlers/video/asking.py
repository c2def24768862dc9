"""Asking the `veo` handler for a video, of a fake provider."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

from taskgate.handlers.video.handler import veo_handler
from taskgate.local.fake_provider import FakeProvider
from taskgate.settings import Settings
from taskgate.task import Task
from taskgate.testing import MemoryContext, Outcome, run


@cache
def private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def service_account(folder: Path, provider: FakeProvider) -> Path:
    """A credentials file whose tokens come from the fake provider."""
    file = folder / "service_account.json"
    content = {
        "type": "service_account",
        "client_email": "robot@p.iam.gserviceaccount.com",
        "private_key": private_key(),
        "private_key_id": "k1",
        "token_uri": f"{provider.url}/token",
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


QUICK: dict[str, Any] = {"veo_poll_seconds": 0.01, "gemini_api_key": "KEY", "media_allow": "127.0.0.1"}
WIRES: dict[str, dict[str, Any]] = {
    "gemini": {"veo_api": "gemini", "veo_model": "veo-of-a-relay"},
    "vertex": {"veo_api": "vertex", "google_project": "p"},
    "interactions": {},
}


def settings(provider: FakeProvider, **more: Any) -> Settings:
    return Settings(**{**QUICK, "gemini_base_url": provider.url, **more})


async def ask(
    provider: FakeProvider, request: dict[str, Any], *, options: dict[str, Any] | None = None, **more: Any
) -> Outcome:
    """`more` are settings, `options` those of taskgate.testing.run."""
    return await run(veo_handler(settings(provider, **more)), request, **{"timeout": 30, **(options or {})})


def of_wire(name: str, provider: FakeProvider, folder: Path) -> dict[str, Any]:
    if name != "vertex":
        return WIRES[name]
    credentials = str(service_account(folder, provider))
    return {**WIRES[name], "vertex_base_url": provider.url, "google_credentials": credentials}


def api(wire: dict[str, Any]) -> str:
    return str(wire.get("veo_api", "interactions"))


def started(settings: Settings) -> tuple[asyncio.Future[Any], MemoryContext]:
    """The handler at work for "A cat", to be stopped in the middle, and what it wrote."""
    context = MemoryContext(asyncio.get_running_loop(), "t")
    task: Task[Any] = Task("t", "veo", {"prompt": "A cat"}, 1, 3, 60.0, context=context)
    return asyncio.ensure_future(veo_handler(settings).function(task)), context
