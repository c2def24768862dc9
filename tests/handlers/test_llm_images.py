"""The images of `llm` tasks, on their way from an image host to the provider."""

from __future__ import annotations

import base64

import pytest

from taskgate.local.fake_provider import FakeProvider
from tests.handlers.asking import ask, body_of
from tests.handlers.image_host import PNG, ImageHost

DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


async def test_images_are_sent_inline(provider: FakeProvider, images: ImageHost) -> None:
    images.put("/a.png", PNG)
    request = {"prompt": "see", "images": [images.url("/a.png"), DATA, images.url("/a.png")]}
    outcome = await ask(provider, request, media_allow="127.0.0.1")
    assert outcome.status == "completed", outcome
    parts = body_of(provider)["messages"][0]["content"]
    assert parts[0] == {"type": "text", "text": "see"}
    assert [part["image_url"]["url"] for part in parts[1:]] == [DATA] * 3
    assert images.paths == ["/a.png"], "an image that occurs twice is downloaded once"


async def test_images_inside_messages_keep_their_other_fields(provider: FakeProvider, images: ImageHost) -> None:
    images.put("/a.png", PNG)
    url = images.url("/a.png")
    content = [
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}, "cache": 1},
        {"type": "text", "text": url},
        {"type": "image_url", "image_url": url},
    ]
    request = {"messages": [{"role": "user", "content": content, "name": "n"}]}
    await ask(provider, request, media_allow="127.0.0.1")
    assert body_of(provider)["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": DATA, "detail": "high"}, "cache": 1},
                {"type": "text", "text": url},
                {"type": "image_url", "image_url": DATA},
            ],
            "name": "n",
        }
    ]


async def test_images_pass(provider: FakeProvider, images: ImageHost) -> None:
    urls = [images.url("/a.png"), "data:image/png;base64,AAAA"]
    assert (await ask(provider, {"prompt": "see", "images": urls}, images="pass")).status == "completed"
    parts = body_of(provider)["messages"][0]["content"]
    assert [part["image_url"]["url"] for part in parts[1:]] == urls
    assert images.paths == []


@pytest.mark.parametrize(
    ("second", "allow", "status", "code"),
    [
        ("/missing", "127.0.0.1", "failed", "media_unavailable"),
        ("/broken", "127.0.0.1", "retry", "media_unavailable"),
        ("/text", "127.0.0.1", "failed", "media_refused"),
        ("/a.png", "", "failed", "media_refused"),
    ],
)
async def test_a_failed_image_is_named(
    provider: FakeProvider, images: ImageHost, second: str, allow: str, status: str, code: str
) -> None:
    images.put("/a.png", PNG)
    images.put("/missing", b"", status="404 Not Found")
    images.put("/broken", b"", status="500 Oops")
    images.put("/text", b"hello")
    outcome = await ask(provider, {"prompt": "a", "images": [DATA, images.url(second)]}, media_allow=allow)
    assert (outcome.status, outcome.error_code) == (status, code)
    assert (outcome.error or "").startswith("image 2: ")
    assert provider.journal.requests == 0


async def test_all_images_together_have_a_limit(provider: FakeProvider) -> None:
    several = [f"data:image/png;base64,{base64.b64encode(PNG + bytes([n]) * 1700).decode()}" for n in range(7)]
    outcome = await ask(provider, {"prompt": "a", "images": several}, media_max_bytes=2048)
    assert (outcome.status, outcome.error_code) == ("failed", "media_refused")
    assert "in all" in (outcome.error or "")
