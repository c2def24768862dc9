"""Images for a provider: downloaded from public hosts only, checked, and made into data: URIs.

The guard against requests to inner hosts: the name is resolved once, every address is checked, and the connection
goes to a checked address (with the host's own name in Host and TLS); so again at every redirect.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from taskgate.handlers.addresses import Address, Allowed, refused
from taskgate.task import PermanentError, Retry

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS = 3
DEADLINE_SECONDS = 30.0
CONNECT_SECONDS = 10.0
Resolve = Callable[[str], Awaitable[list[str]]]
AGENT = "taskgate (image download)"


class MediaRefused(PermanentError):
    """The image may not or cannot be used, whenever it is tried."""

    code = "media_refused"


class MediaUnavailable(PermanentError):
    """The host says that there is no such image for us."""

    code = "media_unavailable"


class Downloader:
    """Downloads images, each of at most `max_bytes` and within `deadline` seconds in all."""

    def __init__(
        self,
        allow: str = "",
        *,
        max_bytes: int,
        deadline: float = DEADLINE_SECONDS,
        resolve: Resolve | None = None,
    ) -> None:
        """Raises ValueError for an `allow` that cannot be read; its form is that of TASKGATE_MEDIA_ALLOW."""
        self._allowed = Allowed(allow)
        self._max_bytes, self._deadline = max_bytes, deadline
        self._resolve = resolve or resolve_host
        self._tls: object = None

    async def inline(self, url: str, name: str) -> str:
        """The image as a data: URI. `name` is what errors call it, such as `image 2`.

        Raises MediaRefused (a forbidden host, too many bytes, no image), MediaUnavailable (the host answered 4xx)
        or Retry (it cannot be reached, answered 5xx, or took too long).
        """
        if url[:5].lower() == "data:":
            return self._check_data(url, name)
        try:
            async with asyncio.timeout(self._deadline):
                content = await self._download(url, name)
        except TimeoutError:
            words = f"{name}: {_shown(url)} was not downloaded within {self._deadline:g} s"
            raise Retry(words, code="media_unavailable") from None
        kind = sniff(content)
        if kind is None:
            raise MediaRefused(f"{name}: {_shown(url)} is no PNG, JPEG, GIF or WebP image")
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"

    def _check_data(self, uri: str, name: str) -> str:
        heading, comma, text = uri.partition(",")
        if not comma or not heading.lower().endswith(";base64"):
            raise MediaRefused(f"{name}: the data: URI must look like data:image/png;base64,…")
        if len(text) // 4 * 3 > self._max_bytes + 2:
            raise self._too_large(name)
        try:
            content = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            raise MediaRefused(f"{name}: the data: URI holds no valid base64") from None
        if len(content) > self._max_bytes:
            raise self._too_large(name)
        kind = sniff(content)
        if kind is None:
            raise MediaRefused(f"{name}: the data: URI holds no PNG, JPEG, GIF or WebP image")
        declared = heading[5:].split(";")[0].lower()
        return uri if declared == kind else f"data:{kind};base64,{text}"

    async def _download(self, url: str, name: str) -> bytearray:
        import httpx2

        self._tls = self._tls or httpx2.create_ssl_context()
        # no proxy from the environment: it would resolve the name again, unchecked
        async with httpx2.AsyncClient(
            trust_env=False,
            verify=self._tls,  # type: ignore[arg-type]
            timeout=httpx2.Timeout(self._deadline, connect=CONNECT_SECONDS),
            headers={"user-agent": AGENT, "accept": "image/*", "accept-encoding": "identity"},
        ) as client:
            target = self._parse(url, name)
            for _ in range(MAX_REDIRECTS + 1):
                response = await self._request(client, target, name)
                try:
                    location = response.headers.get("location") if response.is_redirect else None
                    if location is None:
                        return await self._read(response, target, name)
                finally:
                    await response.aclose()
                target = self._parse(location, name, target)
            raise MediaRefused(f"{name}: {_shown(url)} redirects more than {MAX_REDIRECTS} times")

    def _parse(self, url: str, name: str, base: httpx2.URL | None = None) -> httpx2.URL:
        import httpx2

        try:
            target = base.join(url) if base is not None else httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError, TypeError):
            raise MediaRefused(f"{name}: the URL is malformed") from None
        if target.scheme not in ("http", "https") or not target.host:
            raise MediaRefused(f"{name}: only http and https URLs are downloaded")
        if target.userinfo:
            raise MediaRefused(f"{name}: a URL with a user name or password is not downloaded")
        return target

    async def _request(self, client: httpx2.AsyncClient, target: httpx2.URL, name: str) -> httpx2.Response:
        import httpx2

        addresses = await self._addresses(target, name)
        problem: Exception | None = None
        for address in addresses:
            request = client.build_request(
                "GET",
                target.copy_with(host=str(address)),
                headers={"host": target.netloc.decode("ascii")},
                extensions={"sni_hostname": target.raw_host.decode("ascii")},
            )
            try:
                return await client.send(request, stream=True)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                problem = error  # perhaps the next address answers
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                problem = error
                break
        words = str(problem) or type(problem).__name__
        raise Retry(f"{name}: {_shown(str(target))} cannot be downloaded: {words}", code="media_unavailable")

    async def _addresses(self, target: httpx2.URL, name: str) -> list[Address]:
        host = target.raw_host.decode("ascii")
        try:
            addresses = [ip_address(each) for each in await self._resolve(host)]
        except (OSError, UnicodeError) as error:
            words = f"{name}: the host {host} cannot be resolved: {error}"
            raise Retry(words, code="media_unavailable") from None
        if not self._allowed.host(host):
            self._check(addresses, host, name)
        return addresses

    def _check(self, addresses: Iterable[Address], host: str, name: str) -> None:
        for address in addresses:
            why = refused(address)
            if why and not self._allowed.address(address):
                raise MediaRefused(
                    f"{name}: the host {host} is not a public one ({address}: {why}). "
                    "If it is meant, add it to TASKGATE_MEDIA_ALLOW",
                )

    async def _read(self, response: httpx2.Response, target: httpx2.URL, name: str) -> bytearray:
        import httpx2

        where = f"{name}: {_shown(str(target))}"
        status = response.status_code
        if status in (408, 425, 429) or status >= 500:
            raise Retry(f"{where} answered {status}", code="media_unavailable")
        if status != 200:
            raise MediaUnavailable(f"{where} answered {status}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise MediaRefused(f"{where} is sent compressed, though that was not asked for")
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large(name)
        content = bytearray()
        try:
            async for part in response.aiter_raw():
                content += part
                if len(content) > self._max_bytes:
                    raise self._too_large(name)
        except httpx2.TransportError as error:
            words = str(error) or type(error).__name__
            raise Retry(f"{where} broke off: {words}", code="media_unavailable") from None
        return content

    def _too_large(self, name: str) -> MediaRefused:
        return MediaRefused(f"{name} is larger than {self._max_bytes} bytes (TASKGATE_MEDIA_MAX_BYTES)")


async def resolve_host(host: str) -> list[str]:
    """The addresses of a host, each once, in the system's order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def sniff(content: bytes | bytearray) -> str | None:
    """The media type by the first bytes: PNG, JPEG, GIF or WebP, else None."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return None


def _shown(url: str) -> str:
    """A URL as errors show it: without its query, which may be a signature."""
    shown = url.split("?")[0].split("#")[0]
    return shown if len(shown) <= 200 else shown[:199] + "…"
