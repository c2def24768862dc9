"""GET requests that reach only public hosts, and those that the settings allow.

The name is resolved once, every address is checked, and the connection goes to a checked address (with the host's own
name in Host and TLS); so again at every redirect.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

from taskgate.handlers.addresses import Address, Allowed, refused
from taskgate.task import PermanentError, Retry

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    import httpx2

MAX_REDIRECTS = 3
CONNECT_SECONDS = 10.0
AGENT = "taskgate (media download)"
PORTS = {"http": 80, "https": 443}

Resolve = Callable[[str], Awaitable[list[str]]]

_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)


class MediaRefused(PermanentError):
    """The medium may not or cannot be used, whenever it is tried."""

    code = "media_refused"


class MediaUnavailable(PermanentError):
    """The host says that there is no such thing for us."""

    code = "media_unavailable"


class GuardedClient:
    """`allow` is TASKGATE_MEDIA_ALLOW; `own` are base URLs whose very host and port is allowed by itself."""

    def __init__(self, allow: str, own: Iterable[str], resolve: Resolve | None) -> None:
        """Raises ValueError for an `allow` that cannot be read."""
        self._allowed = Allowed(allow)
        self._own_urls = [url for url in own if url]
        self._own: set[tuple[str, int]] | None = None
        self._resolve = resolve or resolve_host

    @asynccontextmanager
    async def get(
        self, url: str, name: str, *, accept: str, timeout: float, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        """The answer to a GET, its body not read yet; redirects are followed.

        `headers` go to the URL's own origin only. Raises MediaRefused, MediaUnavailable or Retry.
        """
        import httpx2

        # no proxy from the environment: it would resolve the name again, unchecked
        async with httpx2.AsyncClient(
            trust_env=False,
            verify=_tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            timeout=httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
            headers={"user-agent": AGENT, "accept": accept, "accept-encoding": "identity"},
        ) as client:
            target = parse(url, name)
            origin = _origin(target)
            for _ in range(MAX_REDIRECTS + 1):
                response = await self._request(client, target, name, headers if _origin(target) == origin else {})
                try:
                    location = response.headers.get("location") if response.is_redirect else None
                    if location is None:
                        check_answer(response, f"{name}: {shown(str(target))}")
                        yield response
                        return
                finally:
                    await response.aclose()
                target = parse(location, name, target)
            raise MediaRefused(f"{name}: {shown(url)} redirects more than {MAX_REDIRECTS} times")

    async def _request(
        self, client: httpx2.AsyncClient, target: httpx2.URL, name: str, headers: Mapping[str, str]
    ) -> httpx2.Response:
        import httpx2

        addresses = await self._addresses(target, name)
        problem: Exception | None = None
        for address in addresses:
            request = client.build_request(
                "GET",
                target.copy_with(host=str(address)),
                headers={**headers, "host": target.netloc.decode("ascii")},
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
        raise Retry(f"{name}: {shown(str(target))} cannot be downloaded: {words}", code="media_unavailable")

    async def _addresses(self, target: httpx2.URL, name: str) -> list[Address]:
        host = target.raw_host.decode("ascii")
        if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) and not _is_address(host):
            # some resolvers read 127.1, 2130706433 or 0x7f000001 as an address, others ask for that name
            raise MediaRefused(f"{name}: the host {host} is no IP address in its usual form")
        try:
            addresses = [ip_address(each) for each in await self._resolve(host)]
        except (OSError, UnicodeError) as error:
            words = f"{name}: the host {host} cannot be resolved: {error}"
            raise Retry(words, code="media_unavailable") from None
        if not self._allowed.host(host) and not self._is_own(host, target):
            self._check(addresses, host, name)
        return addresses

    def _is_own(self, host: str, target: httpx2.URL) -> bool:
        import httpx2

        if self._own is None:
            self._own = set()
            for url in self._own_urls:
                try:
                    own = httpx2.URL(url)
                except (httpx2.InvalidURL, ValueError):
                    continue  # who calls it says so
                self._own.add((own.raw_host.decode("ascii").lower(), own.port or PORTS.get(own.scheme, 0)))
        return (host.lower(), target.port or PORTS[target.scheme]) in self._own

    def _check(self, addresses: Iterable[Address], host: str, name: str) -> None:
        for address in addresses:
            why = refused(address)
            if why and not self._allowed.address(address):
                raise MediaRefused(
                    f"{name}: the host {host} is not a public one ({address}: {why}). "
                    "If it is meant, add it to TASKGATE_MEDIA_ALLOW",
                )


def parse(url: str, name: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """The URL, seen from `base`. Raises MediaRefused."""
    import httpx2

    try:
        target = base.join(url) if base is not None else httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError, TypeError):
        raise MediaRefused(f"{name}: the URL is malformed") from None
    if target.scheme not in PORTS or not target.host:
        raise MediaRefused(f"{name}: only http and https URLs are downloaded")
    if target.userinfo:
        raise MediaRefused(f"{name}: a URL with a user name or password is not downloaded")
    if target.port is not None and not 0 < target.port < 65536:
        raise MediaRefused(f"{name}: the URL is malformed")
    return target


def check_answer(response: httpx2.Response, where: str) -> None:
    """Raises what an answer's status and encoding mean."""
    status = response.status_code
    if status in (408, 425, 429) or status >= 500:
        raise Retry(f"{where} answered {status}", code="media_unavailable")
    if status != 200:
        raise MediaUnavailable(f"{where} answered {status}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise MediaRefused(f"{where} is sent compressed, though that was not asked for")


@cache
def _tls_context(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Dear to make: it reads every authority's certificate, of the places that the two variables name."""
    import httpx2

    return httpx2.create_ssl_context()


async def resolve_host(host: str) -> list[str]:
    """The addresses of a host, each once, in the system's order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def shown(url: str) -> str:
    """A URL as errors show it: without its query, which may be a signature."""
    text = url.split("?")[0].split("#")[0]
    return text if len(text) <= 200 else text[:199] + "…"


def _origin(url: httpx2.URL) -> tuple[str, bytes, int]:
    return url.scheme, url.raw_host.lower(), url.port or PORTS[url.scheme]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
