"""A fake provider, and a host of images on a socket, for the handlers' tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest

from taskgate.local.fake_provider import FakeProvider
from tests.handlers.image_host import ImageHost


@pytest.fixture
async def images() -> AsyncIterator[ImageHost]:
    host = ImageHost()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    yield host
    server.close()


@pytest.fixture
async def tls_images() -> AsyncIterator[tuple[ImageHost, list[str | None], bytes]]:
    """An image host that speaks TLS as `pictures.test`, the names it was asked for, and its authority's PEM."""
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("pictures.test").configure_cert(context)
    names: list[str | None] = []
    context.sni_callback = lambda sock, name, ctx: names.append(name)
    host = ImageHost()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    yield host, names, authority.cert_pem.bytes()
    server.close()


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as fake:
        yield fake


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine's environment says of providers and proxies is not the tests' business."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TASKGATE_LLM_MODEL", "TASKGATE_IMAGES", "TASKGATE_MEDIA_ALLOW"):
        monkeypatch.delenv(name, raising=False)
