"""For producers: submit tasks over HTTP and read what came of them, blocking. With asyncio: async_client.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from taskgate import flows
from taskgate.downloads import MediaDownload
from taskgate.errors import TaskgateError
from taskgate.exchange import Answer, Flow, Pause
from taskgate.submission import CHUNK, Options, Request, SubmitOptions, body_of, many_chunks
from taskgate.transport import arguments, http_options, reply_of, trouble_of
from taskgate.views import Page, Submitted, TaskView

T = TypeVar("T")


class Client:
    """A blocking client; keeps connections, so make one and use it from any thread, and close it.

    `url` defaults to TASKGATE_URL, else a running `taskgate up` of this user, else http://127.0.0.1:8000; `api_key`
    to TASKGATE_API_KEY. `timeout` are the seconds one request may take, waiting apart. What is safe to repeat is
    repeated a few times when the API is away or says 503; a submission only if it carries a `task_id` or an
    `idempotency_key`, so that it cannot be carried out twice. Raises errors of `taskgate.errors`, all of them
    TaskgateError; ValueError for what cannot be sent at all.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        self._http = httpx2.Client(**http_options(url, api_key))
        self._timeout = timeout

    def submit(self, request: Request, *, task_type: str = "llm", **options: Unpack[SubmitOptions]) -> Submitted:
        """Submit one task; when this returns it is committed to disk. TaskExists if the `task_id` is taken."""
        body = body_of(request, Options(**options))
        return self._run(flows.submit(body, task_type))

    def submit_many(
        self,
        requests: Iterable[Request],
        *,
        task_type: str = "llm",
        chunk: int = CHUNK,
        **options: Unpack[SubmitOptions],
    ) -> list[Submitted]:
        """Submit many, in order. Each chunk is taken whole or not at all; an error's `accepted` lists those before.

        `requests` may be a generator; a request may carry options of its own in its key `taskgate`.
        """
        accepted: list[Submitted] = []
        try:
            for part in self.submit_chunks(requests, task_type=task_type, chunk=chunk, **options):
                accepted.extend(part)
        except TaskgateError as error:
            error.accepted = accepted
            raise
        return accepted

    def submit_chunks(
        self,
        requests: Iterable[Request],
        *,
        task_type: str = "llm",
        chunk: int = CHUNK,
        **options: Unpack[SubmitOptions],
    ) -> Iterator[list[Submitted]]:
        """submit_many as a stream: yields the tasks of each chunk once that is committed."""
        for part in many_chunks(requests, options, chunk):
            yield self._run(flows.submit_chunk(part, task_type))

    def run(
        self,
        request: Request,
        *,
        task_type: str = "llm",
        wait_seconds: float | None = None,
        **options: Unpack[SubmitOptions],
    ) -> TaskView:
        """Submit one task and wait until it is final. Raises WaitTimeout after `wait_seconds`."""
        return self.wait(self.submit(request, task_type=task_type, **options).task_id, timeout=wait_seconds)

    def get(self, task_id: str, *, include: Sequence[str] = ()) -> TaskView:
        """A task as it stands; `include` of request, history. Raises NotFound."""
        return self._run(flows.get(task_id, 0, include))

    def wait(self, task_id: str, *, timeout: float | None = None, include: Sequence[str] = ()) -> TaskView:
        """The task once it is final. Raises WaitTimeout after `timeout` seconds (None: never), NotFound."""
        return self._run(flows.wait_final(task_id, timeout, include))

    def list(
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
        """One page of tasks, newest first. `limit` up to 500; `include` of request, result."""
        return self._run(flows.page(status, task_type, created_after, created_before, limit, cursor, include))

    def list_all(
        self,
        *,
        status: str | None = None,
        task_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        include: Sequence[str] = (),
    ) -> Iterator[TaskView]:
        """Every task that fits, page by page, newest first."""
        cursor: str | None = None
        while True:
            got = self._run(flows.page(status, task_type, created_after, created_before, 500, cursor, include))
            yield from got.items
            if got.next_cursor is None:
                return
            cursor = got.next_cursor

    def cancel(self, task_id: str) -> str:
        """`cancelled`, or `cancelling` while a worker is told to stop it. Raises Conflict when it is finished."""
        return self._run(flows.cancel(task_id))

    def retry(self, task_id: str) -> Submitted:
        """Put a failed task back into the queue. Raises Conflict when it has not failed."""
        return self._run(flows.retry(task_id))

    def media(self, task_id: str, name: str) -> MediaDownload:
        """An image or a video that a task made, to be used with `with`; its result names it.

        Raises NotFound, on entering, and ServerError when what came is not what the hash says.
        """
        return MediaDownload(self._http, task_id, name, self._timeout)

    def stats(self) -> dict[str, Any]:
        """What the queue looks like now: limit, running, pending and more."""
        return dict(self._run(flows.read("/stats")))

    def limits(self) -> dict[str, Any]:
        """The limit of the whole fleet."""
        return dict(self._run(flows.read("/limits")))

    def workers(self) -> Sequence[dict[str, Any]]:
        """The workers seen within a day (GET /workers); needs an admin's key where there are keys."""
        found: Sequence[dict[str, Any]] = (self._run(flows.read("/workers")))["items"]
        return found

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        answer: Answer = None
        try:
            while True:
                step = flow.send(answer)
                answer = None
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    continue
                try:
                    answer = reply_of(self._http.request(**arguments(step, self._timeout)))
                except httpx2.TransportError as error:
                    answer = trouble_of(error, self._http.base_url)
        except StopIteration as end:
            value: T = end.value
            return value
