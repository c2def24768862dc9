"""Client and AsyncClient against a real API, and with a wire between them that breaks in the middle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from taskgate import AsyncClient, Client, exchange
from taskgate.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    NotReachable,
    RequestRefused,
    SubmissionUncertain,
    TaskExists,
    TaskFailed,
    TaskgateError,
    WaitTimeout,
)
from taskgate.local import state
from taskgate.transport import http_options
from tests.programs import start_api


@pytest.fixture
def api(database: str) -> Iterator[str]:
    with start_api(database) as program:
        yield program.event("api_started")["url"]


@pytest.fixture(autouse=True)
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "TASKGATE_URL", "TASKGATE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def finish(database: str, task_id: str, status: str = "completed") -> None:
    """What a worker that knows only SQL does."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE tasks SET status = 'running', attempts = 1, locked_until = now() + interval '1 minute' "
            "WHERE task_id = %s",
            (task_id,),
        )
    with psycopg.connect(database) as connection:
        connection.execute(
            'UPDATE tasks SET status = %s, result = \'{"text": "done"}\', error = %s, locked_until = NULL '
            "WHERE task_id = %s",
            (status, "broken" if status == "failed" else None, task_id),
        )


def count(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(*) FROM tasks").fetchone()
    assert row is not None
    return int(row[0])


class Wire:
    """Carries connections to the API; the first `cut` answers are swallowed and their connections reset."""

    def __init__(self, host: str, port: int, cut: int) -> None:
        self.host, self.port, self.cut = host, port, cut
        self.url = ""
        self.connections = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection(self.host, self.port)

        async def forward() -> None:
            while data := await reader.read(65536):
                up_writer.write(data)

        sending = asyncio.ensure_future(forward())
        try:
            while data := await up_reader.read(65536):  # the API has done its work once it answers
                if self.cut:
                    self.cut -= 1
                    writer.transport.abort()
                    return
                writer.write(data)
        finally:
            sending.cancel()
            up_writer.close()
            writer.close()


@asynccontextmanager
async def wire(api: str, cut: int) -> AsyncIterator[Wire]:
    host, port = api.removeprefix("http://").split(":")
    carrier = Wire(host, int(port), cut)
    server = await asyncio.start_server(carrier.carry, "127.0.0.1", 0)
    carrier.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield carrier
    finally:
        server.close()


def test_a_task_from_submission_to_result(api: str, database: str) -> None:
    with Client(api) as client:
        submitted = client.submit("What?", priority=9, metadata={"order": 7}, start_within_seconds=60)
        assert submitted.status == "pending"
        view = client.get(submitted.task_id, include=["request", "history"])
        assert (view.status, view.priority, view.metadata) == ("pending", 9, {"order": 7})
        assert view.request == {"prompt": "What?"}
        assert view.created_at is not None
        assert abs(datetime.now(UTC) - view.created_at) < timedelta(minutes=5)
        with pytest.raises(WaitTimeout) as caught:
            client.wait(submitted.task_id, timeout=0.2)
        assert caught.value.task.status == "pending"
        threading.Timer(0.3, finish, (database, submitted.task_id)).start()
        view = client.wait(submitted.task_id, timeout=60)
        assert view.ok
        assert view.raise_if_failed().result == {"text": "done"}
        with pytest.raises(Conflict):
            client.cancel(submitted.task_id)
        stats = client.stats()
        assert (stats["running"], stats["pending"], stats["limit"]) == (0, 0, client.limits()["max_concurrent"])


def test_failures_are_errors_when_asked_for(api: str, database: str) -> None:
    with Client(api) as client:
        submitted = client.submit({"prompt": "x"})
        with pytest.raises(Conflict):
            client.retry(submitted.task_id)
        finish(database, submitted.task_id, "failed")
        with pytest.raises(TaskFailed, match="broken"):
            client.wait(submitted.task_id).raise_if_failed()
        assert client.retry(submitted.task_id).status == "pending"
        assert client.cancel(submitted.task_id) == "cancelled"
        assert client.get(submitted.task_id).error == "cancelled"


def test_refusals_say_what_is_wrong(api: str, database: str) -> None:
    with Client(api) as client:
        with pytest.raises(RequestRefused) as refused:
            client.submit({"prompt": 5})
        assert [error.pointer for error in refused.value.errors] == ["/prompt"]
        with pytest.raises(NotFound, match="llm, veo"):
            client.submit({"x": 1}, task_type="nosuch")
        with pytest.raises(NotFound):
            client.get("unknown")
        client.submit("x", task_id="mine")
        with pytest.raises(TaskExists):
            client.submit("x", task_id="mine")
        with pytest.raises(ValueError, match="NUL"):
            client.submit("a\0b")
        assert count(database) == 1


def test_many_in_chunks_and_what_was_accepted_before_an_error(api: str, database: str) -> None:
    with Client(api) as client:
        made = client.submit_many((f"p{n}" for n in range(25)), chunk=10, priority=2)
        assert len({each.task_id for each in made}) == count(database) == 25
        listed = [view.task_id for view in client.list_all(task_type="llm")]
        assert listed == [each.task_id for each in reversed(made)]
        page = client.list(limit=20)
        assert len(page.items) == 20
        assert page.next_cursor is not None
        assert len(client.list(limit=20, cursor=page.next_cursor).items) == 5
        with pytest.raises(TaskgateError) as caught:
            client.submit_many([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}, {"prompt": 5}], chunk=2)
        assert len(caught.value.accepted) == 2
        assert caught.value.errors[0].pointer == "/3/prompt"
        assert count(database) == 27


async def test_the_asyncio_client_does_the_same(api: str, database: str) -> None:
    async with AsyncClient(api) as client:
        submitted = await client.submit("What?")
        waiting = asyncio.ensure_future(client.wait(submitted.task_id, timeout=60))
        await asyncio.to_thread(finish, database, submitted.task_id)
        assert (await waiting).ok
        made = await client.submit_many([f"p{n}" for n in range(5)], chunk=2)
        assert [view.task_id async for view in client.list_all(status="pending")] == [
            each.task_id for each in reversed(made)
        ]
        assert (await client.cancel(made[0].task_id)) == "cancelled"
        assert (await client.retry(made[0].task_id)).status == "pending"
        assert len((await client.list(limit=2)).items) == 2
        assert (await client.get(made[0].task_id)).status == "pending"
        assert (await client.stats())["pending"] == 5
        with pytest.raises(WaitTimeout):
            await client.run("never", wait_seconds=0.1)


async def test_an_answer_lost_on_the_way(api: str, database: str) -> None:
    async with wire(api, cut=1) as carrier, AsyncClient(carrier.url) as client:
        with pytest.raises(SubmissionUncertain):
            await client.submit("without an id")
        assert count(database) == 1  # it was written: sending it again would have made two
        carrier.cut = 2
        assert (await client.submit("with an id", task_id="mine")).task_id == "mine"
        assert count(database) == 2
        carrier.cut = 1
        batch = [{"prompt": str(n), "taskgate": {"task_id": f"many-{n}"}} for n in range(3)]
        assert [each.task_id for each in await client.submit_many(batch)] == ["many-0", "many-1", "many-2"]
        assert count(database) == 5
        carrier.cut = 2
        assert (await client.get("mine")).status == "pending"
        carrier.cut = 1
        assert (await client.cancel("mine")) == "cancelled"


def test_nobody_there() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(NotReachable, match=r"127\.0\.0\.1:9"):
        client.submit("x")


def test_keys_come_from_the_environment_or_a_file(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_api(database, TASKGATE_API_KEYS="acme:secret-a, other:secret-b") as program:
        url = program.event("api_started")["url"]
        monkeypatch.setenv("TASKGATE_URL", url)
        with Client() as client, pytest.raises(NotAllowed):
            client.submit("x")
        monkeypatch.setenv("TASKGATE_API_KEY", "secret-a")
        with Client() as client:
            task_id = client.submit("x").task_id
        (tmp_path / "key").write_text("secret-b\n")
        monkeypatch.delenv("TASKGATE_API_KEY")
        monkeypatch.setenv("TASKGATE_API_KEY_FILE", str(tmp_path / "key"))
        with Client() as client, pytest.raises(NotFound):
            client.get(task_id)  # another tenant's
        with Client(api_key="secret-a") as client:
            assert client.get(task_id).status == "pending"


async def test_without_a_url_a_running_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = state.State(os.getpid(), state.process_started(os.getpid()) or "", "http://127.0.0.1:9", "", "", "m")
    monkeypatch.setattr(state, "default_data_dir", lambda: tmp_path)
    monkeypatch.setattr(exchange, "TRIES", 1)
    assert http_options(None, None)["base_url"] == "http://127.0.0.1:8000"
    state.write(replace(running, data=str(tmp_path)))
    with Client() as client, pytest.raises(NotReachable, match=r"127\.0\.0\.1:9"):
        client.stats()
    async with AsyncClient() as patient:
        with pytest.raises(NotReachable, match=r"127\.0\.0\.1:9"):
            await patient.stats()
    monkeypatch.setenv("TASKGATE_URL", "http://127.0.0.1:7")
    assert http_options(None, None)["base_url"] == "http://127.0.0.1:7"
    assert http_options("http://127.0.0.1:6", None)["base_url"] == "http://127.0.0.1:6"


def test_a_client_with_a_url_looks_for_no_up() -> None:
    code = "import sys, taskgate; taskgate.Client('http://x'); print('taskgate.local.state' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


async def test_workers(api: str) -> None:
    with Client(api) as client:
        assert client.workers() == []
    async with AsyncClient(api) as patient:
        assert await patient.workers() == []


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "nonsense"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="no URL of an API"):
        Client(url)
