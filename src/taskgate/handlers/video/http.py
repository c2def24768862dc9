"""HTTP to video providers: one pool for looks and downloads, and connections of their own for submissions.

A submission never goes over a kept-alive connection: one that the server just closed would look like a drop in
flight, and nobody could say whether the video was paid for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from taskgate.handlers.outcomes import Answer
from taskgate.handlers.video.accounts import Account
from taskgate.handlers.video.tokens import direct_hosts
from taskgate.handlers.video.wire import HttpCall

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 30.0
LOOKS_AT_ONCE = 32
LARGE_BYTES = 1024**2
LARGE_AT_ONCE = 4
"""Answers above LARGE_BYTES (a video in base64) and downloads: so many in memory at once."""
MAX_ANSWER_BYTES = 512 * 1024**2

Delivery = Literal["none", "unknown"]


class NoAnswer(Exception):
    """A call that had no whole answer. `delivery`: did it surely not arrive, or does nobody know?"""

    def __init__(self, delivery: Delivery, words: str) -> None:
        super().__init__(words)
        self.delivery, self.words = delivery, words


class ProviderHttp:
    """For one event loop."""

    def __init__(self) -> None:
        import httpx2

        timeout = httpx2.Timeout(LOOK_SECONDS, connect=CONNECT_SECONDS)
        self._looks = httpx2.AsyncClient(
            timeout=timeout,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=LOOKS_AT_ONCE),
            mounts=direct_hosts(),
        )
        self._submissions = httpx2.AsyncClient(
            timeout=timeout,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            headers={"connection": "close"},
            mounts=direct_hosts(),
        )
        self._turns = asyncio.Semaphore(LOOKS_AT_ONCE)
        self.large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def submit(
        self, account: Account, call: HttpCall, headers: dict[str, str], seconds: float, *, answering: asyncio.Event
    ) -> Answer:
        """`answering` is set once an answer begins. Raises NoAnswer."""
        return await self._send(self._submissions, account, call, headers, seconds, answering)

    async def look(self, account: Account, call: HttpCall) -> Answer:
        """A poll or a cancellation. Raises NoAnswer, and what the account's tokens raise."""
        async with self._turns:
            return await self._send(self._looks, account, call, await account.headers(), LOOK_SECONDS)

    async def _send(
        self,
        client: httpx2.AsyncClient,
        account: Account,
        call: HttpCall,
        headers: dict[str, str],
        seconds: float,
        answering: asyncio.Event | None = None,
    ) -> Answer:
        import httpx2

        request = client.build_request(
            call.method,
            account.endpoint + call.path,
            headers=headers,
            json=call.body,
            timeout=httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, 0.8 * seconds)),
        )
        try:
            async with asyncio.timeout(seconds):
                response = await client.send(request, stream=True, follow_redirects=False)
                if answering is not None:
                    answering.set()
                try:
                    body = await self._read(response)
                finally:
                    await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError,
                httpx2.UnsupportedProtocol, httpx2.LocalProtocolError) as error:  # fmt: skip
            raise NoAnswer("none", _words(error)) from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise NoAnswer("unknown", _words(error)) from error
        except TimeoutError:
            raise NoAnswer("unknown", f"no whole answer in {seconds:g} s") from None
        found = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, found, body)

    async def _read(self, response: httpx2.Response) -> str:
        content = bytearray()
        holding = False
        try:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > LARGE_BYTES and not holding:
                    await self.large.acquire()
                    holding = True
                if len(content) > MAX_ANSWER_BYTES:
                    raise NoAnswer("unknown", f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
            return content.decode("utf-8", "replace")
        finally:
            if holding:
                self.large.release()

    @asynccontextmanager
    async def stream(self, url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
        """A download's answer, its body still to come. Redirects are the caller's. Raises NoAnswer, also inside."""
        import httpx2

        try:
            async with self._looks.stream("GET", url, headers=headers, follow_redirects=False) as response:
                yield response
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise NoAnswer("unknown", _words(error)) from error


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
