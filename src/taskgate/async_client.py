"""The client of client.py for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from taskgate import flows
from taskgate.downloads import AsyncMediaDownload
from taskgate.errors import TaskgateError
from taskgate.exchange import Answer, Flow, Pause
from taskgate.submission import CHUNK, Options, Request, SubmitOptions, body_of, many_chunks
from taskgate.transport import arguments, http_options, reply_of, trouble_of
from taskgate.views import Page, Submitted, TaskView

T = TypeVar("T")


class AsyncClient:
    """The same for asyncio: each method of `Client` as a coroutine, the streams as async iterators."""

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._http = httpx2.AsyncClient(**http_options(url, api_key))
        self._timeout = timeout

    async def submit(self, request: Request, *, task_type: str = "llm", **options: Unpack[SubmitOptions]) -> Submitted:
        """See Client.submit."""
        body = body_of(request, Options(**options))
        return await self._run(flows.submit(body, task_type))

    async def submit_many(
        self,
        requests: Iterable[Request],
        *,
        task_type: str = "llm",
        chunk: int = CHUNK,
        **options: Unpack[SubmitOptions],
    ) -> list[Submitted]:
        """See Client.submit_many."""
        accepted: list[Submitted] = []
        try:
            async for part in self.submit_chunks(requests, task_type=task_type, chunk=chunk, **options):
                accepted.extend(part)
        except TaskgateError as error:
            error.accepted = accepted
            raise
        return accepted

    async def submit_chunks(
        self,
        requests: Iterable[Request],
        *,
        task_type: str = "llm",
        chunk: int = CHUNK,
        **options: Unpack[SubmitOptions],
    ) -> AsyncIterator[list[Submitted]]:
        """See Client.submit_chunks."""
        for part in many_chunks(requests, options, chunk):
            yield await self._run(flows.submit_chunk(part, task_type))

    async def run(
        self,
        request: Request,
        *,
        task_type: str = "llm",
        wait_seconds: float | None = None,
        **options: Unpack[SubmitOptions],
    ) -> TaskView:
        """See Client.run."""
        submitted = await self.submit(request, task_type=task_type, **options)
        return await self.wait(submitted.task_id, timeout=wait_seconds)

    async def get(self, task_id: str, *, include: Sequence[str] = ()) -> TaskView:
        """See Client.get."""
        return await self._run(flows.get(task_id, 0, include))

    async def wait(self, task_id: str, *, timeout: float | None = None, include: Sequence[str] = ()) -> TaskView:
        """See Client.wait."""
        return await self._run(flows.wait_final(task_id, timeout, include))

    async def list(
        self,
        *,
        status: str | None = None,
        task_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include: Sequence[str] = (),
    ) -> Page:
        """See Client.list."""
        return await self._run(flows.page(status, task_type, created_after, created_before, limit, cursor, include))

    async def list_all(
        self,
        *,
        status: str | None = None,
        task_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        include: Sequence[str] = (),
    ) -> AsyncIterator[TaskView]:
        """See Client.list_all."""
        cursor: str | None = None
        while True:
            got = await self._run(flows.page(status, task_type, created_after, created_before, 500, cursor, include))
            for item in got.items:
                yield item
            if got.next_cursor is None:
                return
            cursor = got.next_cursor

    async def cancel(self, task_id: str) -> str:
        """See Client.cancel."""
        return await self._run(flows.cancel(task_id))

    async def retry(self, task_id: str) -> Submitted:
        """See Client.retry."""
        return await self._run(flows.retry(task_id))

    def media(self, task_id: str, name: str) -> AsyncMediaDownload:
        """See Client.media; to be used with `async with`."""
        return AsyncMediaDownload(self._http, task_id, name, self._timeout)

    async def stats(self) -> dict[str, Any]:
        """See Client.stats."""
        return dict(await self._run(flows.read("/stats")))

    async def limits(self) -> dict[str, Any]:
        """See Client.limits."""
        return dict(await self._run(flows.read("/limits")))

    async def workers(self) -> Sequence[dict[str, Any]]:
        """See Client.workers."""
        found: Sequence[dict[str, Any]] = (await self._run(flows.read("/workers")))["items"]
        return found

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        answer: Answer = None
        try:
            while True:
                step = flow.send(answer)
                answer = None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    continue
                try:
                    answer = reply_of(await self._http.request(**arguments(step, self._timeout)))
                except httpx2.TransportError as error:
                    answer = trouble_of(error, self._http.base_url)
        except StopIteration as end:
            value: T = end.value
            return value
