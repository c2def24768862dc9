"""The guard by conformance/media/vectors.json, which the Go worker's tests read as well."""

from __future__ import annotations

import asyncio
import base64
import re
from ipaddress import ip_address
from typing import Any

import pytest

from taskgate.handlers.addresses import Allowed, refused
from taskgate.handlers.media import IMAGES, VIDEOS, Downloader, sniff
from taskgate.handlers.pictures import image_size
from taskgate.task import Retry, TaskError
from tests.handlers.vector_hosts import VECTORS, VectorHosts


@pytest.mark.parametrize("address", VECTORS["addresses"]["public"])
def test_public_address(address: str) -> None:
    assert refused(ip_address(address)) is None


@pytest.mark.parametrize("case", VECTORS["addresses"]["refused"], ids=lambda case: case["address"])
def test_refused_address(case: dict[str, str]) -> None:
    assert refused(ip_address(case["address"]))


def test_allow_list() -> None:
    for allow, address, expected in VECTORS["addresses"]["allow_addresses"]:
        assert Allowed(allow).address(ip_address(address)) is expected, (allow, address)
    for allow, host, expected in VECTORS["addresses"]["allow_hosts"]:
        assert Allowed(allow).host(host) is expected, (allow, host)
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        Allowed("10.0.0.0/99")


@pytest.mark.parametrize("case", VECTORS["types"], ids=lambda case: case["name"])
def test_type_and_size(case: dict[str, Any]) -> None:
    content = base64.b64decode(case["base64"])
    mime = sniff(content)
    assert mime == case["mime"]
    if mime in IMAGES:
        assert image_size(content, mime) == (None if case["size"] is None else tuple(case["size"]))


@pytest.mark.parametrize("kind", sorted(IMAGES))
def test_a_size_is_read_or_not_whatever_the_bytes(kind: str) -> None:
    """Every beginning of every image, and each byte of it changed, is no trouble."""
    for case in VECTORS["types"]:
        content = base64.b64decode(case["base64"])
        if sniff(content) == kind:
            for at in range(len(content)):
                image_size(content[:at], kind)
                for value in (0, 0x7F, 0xFF):
                    image_size(content[:at] + bytes([value]) + content[at + 1 :], kind)


@pytest.mark.parametrize("case", VECTORS["downloads"], ids=lambda case: case["name"])
async def test_download(case: dict[str, Any]) -> None:
    hosts = VectorHosts(case)
    await hosts.start()
    try:
        await _check(case, hosts)
    finally:
        hosts.stop()


async def _check(case: dict[str, Any], hosts: VectorHosts) -> None:
    expect = case["expect"]
    downloader = Downloader(
        case["allow"],
        max_bytes=case.get("max_bytes", 10_000),
        max_pixels=case.get("max_pixels", 50_000_000),
        deadline=case.get("deadline_seconds", 30),
        own=[hosts.filled(url) for url in case.get("own", [])],
        resolve=hosts.resolve,
    )
    kinds = VIDEOS if case.get("kinds") == "videos" else IMAGES
    outcome: dict[str, Any]
    words = None
    try:
        if "headers" in case:
            async with downloader.open(hosts.filled(case["url"]), "image 1", kinds, headers=case["headers"]) as media:
                _ = [chunk async for chunk in media.chunks]
            outcome = {"outcome": "ok", "mime": media.mime}
        else:
            uri = await downloader.inline(hosts.filled(case["url"]), "image 1", kinds)
            outcome = {"outcome": "ok", "mime": uri.removeprefix("data:").partition(";")[0]}
            body = case["routes"].get("/a.png") or {}
            if "base64" in body:
                assert base64.b64decode(uri.partition(",")[2]).startswith(base64.b64decode(body["base64"]))
    except TaskError as error:
        outcome = {"outcome": "retry" if isinstance(error, Retry) else "permanent", "code": error.code}
        words = error.message
    assert words is None or ("image 1" in words and re.search(expect.get("says", "no error"), words)), words
    assert outcome == {key: expect[key] for key in ("outcome", "mime", "code") if key in expect}
    assert hosts.connected == expect["connected"]
    for host, count in expect.get("asked", {}).items():
        assert hosts.asked[host] == count
    if "host" in expect:
        assert hosts.requests[-1]["host"] == hosts.filled(expect["host"])
    if "headers" in expect:
        sent = [{name: each.get(name) for name in case["headers"]} for each in hosts.requests]
        assert sent == expect["headers"]
    if expect.get("closed"):
        await asyncio.wait_for(hosts.closed.wait(), 30)
