"""The guarded download of images, over real sockets; only the name service is replaced."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from taskgate.handlers.addresses import Allowed, refused
from taskgate.handlers.media import Downloader, MediaRefused, MediaUnavailable, sniff
from taskgate.task import Retry
from tests.handlers.image_host import PNG, ImageHost

VECTORS = json.loads(
    (Path(__file__).parents[2] / "conformance" / "workers" / "media_addresses.json").read_text("utf-8")
)
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def downloader(allow: str = "127.0.0.0/8", **options: Any) -> Downloader:
    return Downloader(allow, **{"max_bytes": 10_000, **options})


def names(**hosts: str | list[str]) -> Callable[[str], Awaitable[list[str]]]:
    """A name service that knows `pictures.test` as `pictures`, and addresses as themselves."""

    async def resolve(host: str) -> list[str]:
        found = hosts.get(host.removesuffix(".test"), host)
        return [found] if isinstance(found, str) else found

    return resolve


@pytest.mark.parametrize("address", VECTORS["public"])
def test_public_address(address: str) -> None:
    assert refused(ip_address(address)) is None


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["address"])
def test_refused_address(case: dict[str, str]) -> None:
    assert refused(ip_address(case["address"]))


def test_allow_list() -> None:
    for allow, address, expected in VECTORS["allow_addresses"]:
        assert Allowed(allow).address(ip_address(address)) is expected, (allow, address)
    for allow, host, expected in VECTORS["allow_hosts"]:
        assert Allowed(allow).host(host) is expected, (allow, host)
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        Allowed("10.0.0.0/99")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_inner_hosts_are_refused_and_never_reached(images: ImageHost, host: str) -> None:
    images.put("/a.png", PNG)
    with pytest.raises(MediaRefused, match=r"image 1: the host .* is not a public one .*TASKGATE_MEDIA_ALLOW"):
        await downloader(allow="").inline(images.url("/a.png", host), "image 1")
    assert images.paths == []


async def test_one_inner_address_among_public_ones_is_enough(images: ImageHost) -> None:
    guarded = downloader(allow="", resolve=names(pictures=["93.184.216.34", "10.0.0.1"]))
    with pytest.raises(MediaRefused, match=r"10\.0\.0\.1: private"):
        await guarded.inline(images.url("/a.png", "pictures.test"), "image 1")


async def test_download_becomes_a_data_uri_by_its_first_bytes(images: ImageHost) -> None:
    images.put("/a", PNG, headers="content-type: text/plain\r\n")
    assert await downloader().inline(images.url("/a"), "image 1") == DATA


async def test_the_connection_goes_to_the_checked_address_with_the_hosts_own_name(images: ImageHost) -> None:
    asked: list[str] = []

    async def rebinding(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    images.put("/a.png", PNG)
    uri = await downloader(resolve=rebinding).inline(images.url("/a.png", "pictures.test"), "image 1")
    assert uri == DATA
    assert asked == ["pictures.test"]
    assert images.hosts == [f"pictures.test:{images.port}"]


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


async def test_each_redirect_is_checked_again(images: ImageHost) -> None:
    images.redirect("/a.png", images.url("/secret", "127.0.0.1"))
    images.put("/secret", PNG)
    guarded = downloader(allow="pictures.test", resolve=names(pictures="127.0.0.1"))
    with pytest.raises(MediaRefused, match="not a public one"):
        await guarded.inline(images.url("/a.png", "pictures.test"), "image 1")
    assert images.paths == ["/a.png"]


async def test_redirects_have_an_end(images: ImageHost) -> None:
    for step in range(4):
        images.redirect(f"/{step}", f"/{step + 1}")
    images.put("/4", PNG)
    assert await downloader().inline(images.url("/1"), "image 1") == DATA  # three of them
    with pytest.raises(MediaRefused, match="redirects more than 3 times"):
        await downloader().inline(images.url("/0"), "image 1")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://pictures.test/a.png", "http://u:p@127.0.0.1/"])
async def test_redirects_stay_with_http(images: ImageHost, location: str) -> None:
    images.redirect("/a.png", location)
    with pytest.raises(MediaRefused):
        await downloader().inline(images.url("/a.png"), "image 1")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://a/b", "http://", "http://u:p@127.0.0.1/a", "http://a:b/"]
)
async def test_only_plain_http_urls(url: str) -> None:
    with pytest.raises(MediaRefused, match="image 7"):
        await downloader().inline(url, "image 7")


async def test_too_large_by_its_own_word(images: ImageHost) -> None:
    images.put("/a.png", PNG + bytes(20_000))
    with pytest.raises(MediaRefused, match="image 1 is larger than 10000 bytes"):
        await downloader().inline(images.url("/a.png"), "image 1")


async def test_too_large_while_it_comes_stops_the_download(images: ImageHost) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
            await writer.drain()

    images.answers["/a.png"] = endless
    with pytest.raises(MediaRefused, match="larger than"):
        await downloader().inline(images.url("/a.png"), "image 1")
    await asyncio.wait_for(images.closed.wait(), 30)


async def test_a_dripping_host_meets_the_deadline(images: ImageHost) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n")
        while True:  # faster than any read timeout
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    images.answers["/a.png"] = drip
    with pytest.raises(Retry, match=r"not downloaded within 0\.3 s") as caught:
        await downloader(deadline=0.3).inline(images.url("/a.png"), "image 1")
    assert caught.value.code == "media_unavailable"
    await asyncio.wait_for(images.closed.wait(), 30)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("404 Not Found", MediaUnavailable),
        ("403 Forbidden", MediaUnavailable),
        ("204 No Content", MediaUnavailable),
        ("429 Too Many Requests", Retry),
        ("500 Internal Server Error", Retry),
        ("503 Service Unavailable", Retry),
    ],
)
async def test_status(images: ImageHost, status: str, error: type[Exception]) -> None:
    images.put("/a.png?signature=hush", b"" if "204" in status else PNG, status=status)
    with pytest.raises(error) as caught:
        await downloader().inline(images.url("/a.png?signature=hush"), "image 3")
    assert caught.value.code == "media_unavailable"  # type: ignore[attr-defined]
    assert str(caught.value) == f"image 3: {images.url('/a.png')} answered {status[:3]}"


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


async def test_a_broken_off_download_is_tried_again(images: ImageHost) -> None:
    images.answers["/a.png"] = b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + PNG
    with pytest.raises(Retry, match="broke off"):
        await downloader().inline(images.url("/a.png"), "image 1")


async def test_what_is_no_image_is_refused(images: ImageHost) -> None:
    images.put("/a.png", b"<html>hello</html>", headers="content-type: image/png\r\n")
    images.put("/b.png", PNG, headers="content-encoding: gzip\r\n")
    with pytest.raises(MediaRefused, match="is no PNG, JPEG, GIF or WebP image"):
        await downloader().inline(images.url("/a.png"), "image 1")
    with pytest.raises(MediaRefused, match="compressed"):
        await downloader().inline(images.url("/b.png"), "image 1")


async def test_data_uris_meet_the_same_rules() -> None:
    encoded = base64.b64encode(PNG).decode()
    assert await downloader().inline(DATA, "image 1") == DATA
    assert await downloader().inline(f"data:image/jpeg;base64,{encoded}", "image 1") == DATA
    large = base64.b64encode(PNG + bytes(10_000)).decode()
    for uri, words in [
        (f"data:image/png;base64,{large}", "larger than"),
        ("data:image/png;base64,!!!!", "no valid base64"),
        ("data:image/png;base64,aGVsbG8=", "no PNG"),
        ("data:image/png,hello", "must look like"),
    ]:
        with pytest.raises(MediaRefused, match=f"image 1.*{words}"):
            await downloader().inline(uri, "image 1")
    exact = base64.b64encode(PNG).decode()
    assert await downloader(max_bytes=len(PNG)).inline(f"data:image/png;base64,{exact}", "image 1") == DATA


def test_sniff() -> None:
    assert sniff(b"\xff\xd8\xff\xe0....") == "image/jpeg"
    assert sniff(b"GIF89a....") == "image/gif"
    assert sniff(b"RIFF\x00\x00\x00\x00WEBPVP8 ") == "image/webp"
    assert sniff(b"RIFF\x00\x00\x00\x00WAVEfmt ") is None
    assert sniff(b"<svg xmlns='...'>") is None
    assert sniff(b"") is None
