"""The guarded download over real sockets: what the vectors (test_media_vectors.py) do not say."""

from __future__ import annotations

import base64
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from taskgate.handlers.media import Downloader
from taskgate.task import Retry
from tests.handlers.image_host import PNG, ImageHost

DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def downloader(allow: str = "127.0.0.0/8", **options: Any) -> Downloader:
    return Downloader(allow, **{"max_bytes": 10_000, **options})


def names(**hosts: str | list[str]) -> Callable[[str], Awaitable[list[str]]]:
    """A name service that knows `pictures.test` as `pictures`, and addresses as themselves."""

    async def resolve(host: str) -> list[str]:
        found = hosts.get(host.removesuffix(".test"), host)
        return [found] if isinstance(found, str) else found

    return resolve


async def test_the_next_address_is_tried(images: ImageHost) -> None:
    images.put("/a.png", PNG)
    two = names(pictures=["::1", "127.0.0.1"])  # nothing listens on the first
    guarded = downloader(allow="pictures.test", resolve=two)
    assert await guarded.inline(images.url("/a.png", "pictures.test"), "image 1") == DATA


async def test_tls_keeps_name_and_certificate(
    tls_images: tuple[ImageHost, list[str | None], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, asked, authority = tls_images
    host.put("/a.png", PNG)
    (tmp_path / "ca.pem").write_bytes(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    guarded = downloader(resolve=names(pictures="127.0.0.1", other="127.0.0.1"))
    assert await guarded.inline(host.url("/a.png", "pictures.test", "https"), "image 1") == DATA
    assert asked == ["pictures.test"]
    with pytest.raises(Retry, match=r"image 1: .*other\.test.*cannot be downloaded: .*certificate"):
        await guarded.inline(host.url("/a.png", "other.test", "https"), "image 1")


async def test_unreachable_and_unknown_hosts_are_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        with pytest.raises(Retry, match="cannot be downloaded") as caught:
            await downloader().inline(f"http://127.0.0.1:{taken.getsockname()[1]}/a.png", "image 1")
    assert caught.value.code == "media_unavailable"

    async def unknown(host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(Retry, match=r"image 1: the host pictures\.test cannot be resolved"):
        await downloader(resolve=unknown).inline("http://pictures.test/a.png", "image 1")
