"""What a task made, as a producer reads it: streamed, taken up again where it broke off, checked by its hash.

`with client.media(task_id, name) as media:` gives the type and size, and the bytes as they come.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx2

from taskgate.errors import NotReachable, ServerError, TaskgateError
from taskgate.exchange import FIRST_PAUSE, LONGEST_PAUSE, PASSING, TRIES, problem_of, retry_after
from taskgate.task import MEDIA_NAME
from taskgate.transport import reply_of, trouble_of


class _Download:
    """Where a download stands. `url` is the API's path of the medium."""

    mime: str
    size: int
    """In bytes."""
    sha256: str

    def __init__(self, task_id: str, name: str, base: httpx2.URL, timeout: float) -> None:
        """Raises ValueError for what cannot be a task or a medium."""
        if not task_id or task_id in (".", "..") or not MEDIA_NAME.fullmatch(name):
            raise ValueError("a task id and a name of 1 to 100 of A-Z a-z 0-9 . _ - are needed")
        self.url = f"/tasks/{quote(task_id, safe='')}/media/{name}"
        self._base, self._timeout = base, httpx2.Timeout(timeout, connect=min(timeout, 10.0))
        self._etag = ""
        self._at = 0
        self._hash = hashlib.sha256()
        self._tries = 0

    def _headers(self) -> dict[str, str]:
        headers = {"accept-encoding": "identity"}
        if self._etag:
            headers |= {"range": f"bytes={self._at}-", "if-range": self._etag}
        return headers

    def _begun(self, response: httpx2.Response) -> None:
        """Raises ServerError when the rest is not of the same content."""
        if self._etag:
            if response.status_code != 206 or response.headers.get("etag") != self._etag:
                raise ServerError(f"{self.url} is another one than it was when the download began")
            return
        self._etag = response.headers.get("etag", "")
        self.sha256 = self._etag.strip('"')
        self.mime = response.headers.get("content-type", "application/octet-stream")
        self.size = int(response.headers.get("content-length", "0"))

    def _took(self, piece: bytes) -> bytes:
        self._hash.update(piece)
        self._at += len(piece)
        self._tries = 0
        return piece

    def _pause(self, error: TaskgateError) -> float:
        """Seconds to the next try. Raises `error` after the last one."""
        self._tries += 1
        if self._tries >= TRIES or (error.retry_after or 0) > LONGEST_PAUSE:
            raise error
        backoff: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._tries - 1)) * random.uniform(0.5, 1.0)
        return max(backoff, error.retry_after or 0.0)

    def _broken(self, error: httpx2.TransportError) -> TaskgateError:
        return NotReachable(trouble_of(error, self._base).reason)

    def _finished(self) -> None:
        if self._hash.hexdigest() != self.sha256:
            raise ServerError(f"{self.url} has not the hash that the API told: {self.sha256}")


def _refusal(response: httpx2.Response) -> TaskgateError:
    reply = reply_of(response)
    error = problem_of(reply)
    error.retry_after = retry_after(reply.headers)
    return error


class MediaDownload(_Download):
    """`mime`, `size` and `sha256` are known inside the `with` block; iterate it once, or `save` it."""

    def __init__(self, http: httpx2.Client, task_id: str, name: str, timeout: float) -> None:
        super().__init__(task_id, name, http.base_url, timeout)
        self._http = http

    def __enter__(self) -> Self:
        self._response = self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._response.close()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                for piece in self._response.iter_raw():
                    yield self._took(piece)
                if self._at >= self.size:
                    return self._finished()
                raise httpx2.ReadError("the answer ended early")
            except httpx2.TransportError as error:
                self._response.close()
                time.sleep(self._pause(self._broken(error)))
                self._response = self._open()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is there only once it is whole. Raises OSError."""
        part = Path(f"{os.fspath(path)}.part")
        try:
            with part.open("wb") as file:
                for piece in self:
                    file.write(piece)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _open(self) -> httpx2.Response:
        while True:
            try:
                request = self._http.build_request("GET", self.url, headers=self._headers(), timeout=self._timeout)
                response = self._http.send(request, stream=True)
            except httpx2.TransportError as error:
                time.sleep(self._pause(self._broken(error)))
                continue
            try:
                if response.status_code in (200, 206):
                    self._begun(response)
                    return response
                response.read()
                refusal = _refusal(response)
            except BaseException:
                response.close()
                raise
            if response.status_code not in PASSING:
                raise refusal
            time.sleep(self._pause(refusal))


class AsyncMediaDownload(_Download):
    """The same for asyncio: `async with`, `async for`, `await media.save(path)`."""

    def __init__(self, http: httpx2.AsyncClient, task_id: str, name: str, timeout: float) -> None:
        super().__init__(task_id, name, http.base_url, timeout)
        self._http = http

    async def __aenter__(self) -> Self:
        self._response = await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._response.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for piece in self._response.aiter_raw():
                    yield self._took(piece)
                if self._at >= self.size:
                    self._finished()
                    return
                raise httpx2.ReadError("the answer ended early")
            except httpx2.TransportError as error:
                await self._response.aclose()
                await asyncio.sleep(self._pause(self._broken(error)))
                self._response = await self._open()

    async def save(self, path: str | os.PathLike[str]) -> None:
        """See MediaDownload.save."""
        part = Path(f"{os.fspath(path)}.part")
        try:
            with part.open("wb") as file:  # noqa: ASYNC230 - a page cache, not a device, takes the piece
                async for piece in self:
                    file.write(piece)
            part.replace(path)  # noqa: ASYNC240
        finally:
            part.unlink(missing_ok=True)  # noqa: ASYNC240

    async def _open(self) -> httpx2.Response:
        while True:
            try:
                request = self._http.build_request("GET", self.url, headers=self._headers(), timeout=self._timeout)
                response = await self._http.send(request, stream=True)
            except httpx2.TransportError as error:
                await asyncio.sleep(self._pause(self._broken(error)))
                continue
            try:
                if response.status_code in (200, 206):
                    self._begun(response)
                    return response
                await response.aread()
                refusal = _refusal(response)
            except BaseException:
                await response.aclose()
                raise
            if response.status_code not in PASSING:
                raise refusal
            await asyncio.sleep(self._pause(refusal))
