"""How a worker starts, and when it refuses to."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import pytest

from taskgate.local.ports import free_port
from tests.fault.silent_proxy import SilentProxy
from tests.processes import Table, WorkerProcess


async def test_a_database_that_was_never_migrated(
    empty_database: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker("noop", dsn=empty_database)
    assert await worker.ended() == 3
    assert "taskgate migrate" in worker.events("schema_mismatch")[0]["error"]


async def test_a_schema_newer_than_the_program(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    await table.sql.execute("UPDATE taskgate.schema_version SET version = 9999")
    worker = start_worker("noop")
    assert await worker.ended() == 3
    assert "upgrade taskgate" in worker.events("schema_mismatch")[0]["error"]


async def test_a_migrate_out_of_range_is_noticed_after_a_reconnect(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker("noop")
    await worker.event("worker_started")
    await table.sql.execute("UPDATE taskgate.schema_version SET version = 9999")
    await table.sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'taskgate worker%' AND datname = current_database()"
    )
    await table.add("noop", [{}])
    assert await worker.ended() == 3


async def test_wrong_arguments_and_settings(database: str, start_worker: Callable[..., WorkerProcess]) -> None:
    for wanted, worker in [
        ("DATABASE_URL is not set", start_worker("noop", dsn="")),
        ("no module 'nowhere'", start_worker("noop", app="nowhere:handlers")),
        (
            "neither a Handlers() nor an @handler function of tests.worker.app; "
            "what works: --app tests.worker.app:handlers (a registry)\n",
            start_worker("noop", app="tests.worker.app:nothing"),
        ),
        ("--types nosuch: no handler for it; there are llm, veo, ", start_worker("nosuch")),
        ("TASKGATE_SLOTS", start_worker("noop", TASKGATE_SLOTS="none")),
    ]:
        assert await worker.ended() == 2
        assert wanted in worker.output()
        assert "Traceback" not in worker.output()


async def test_it_waits_for_a_database_that_is_not_there_yet(
    table: Table, start_worker: Callable[..., WorkerProcess]
) -> None:
    (task_id,) = await table.add("noop", [{}])
    parts = urlsplit(table.dsn)
    port = free_port()
    dsn = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"))
    worker = start_worker("noop", dsn=dsn)
    said = await worker.event("database_lost")
    assert (said["level"], said["host"], said["port"]) == ("warning", "127.0.0.1", str(port))
    async with SilentProxy(table.dsn, port):
        await table.final([task_id])
        await worker.event("worker_started")
        assert len([each for each in worker.events("database_lost") if each["seconds"] == 0]) == 1, "not at each try"


@pytest.mark.parametrize("part", ["password", "database"])
async def test_a_refused_login_is_said_and_tried_again(
    table: Table, start_worker: Callable[..., WorkerProcess], part: str
) -> None:
    parts = urlsplit(table.dsn)
    wrong = {
        "password": parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}"),
        "database": parts._replace(path="/nowhere"),
    }
    worker = start_worker("noop", dsn=urlunsplit(wrong[part]))
    said = await worker.event("database_lost")
    assert {"password": "password authentication failed", "database": 'database "nowhere" does not exist'}[
        part
    ] in said["error"]
    shown = wrong[part]
    assert said["level"] == "error"
    assert said["hint"] == "check DATABASE_URL; it goes on trying"
    place = (shown.hostname, str(shown.port), shown.path[1:], shown.username)
    assert (said["host"], said["port"], said["database"], said["user"]) == place
    assert parts.password is not None
    assert parts.password not in worker.output()
    assert worker.process.poll() is None, "it keeps trying"


async def test_health_and_metrics(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    worker = start_worker("noop,do", TASKGATE_WORKER_PORT="0")
    url = (await worker.event("health_listening"))["url"]
    ids = await table.add("noop", [{}] * 3) + await table.add("do", [{"what": "permanent"}])
    await table.final(ids)
    with urllib.request.urlopen(f"{url}/healthz") as answer:  # noqa: ASYNC210
        page = json.load(answer)
    assert (page["status"], page["database"], page["running"]) == ("ok", "ok", 0)
    with urllib.request.urlopen(f"{url}/metrics") as answer:  # noqa: ASYNC210
        metrics = answer.read().decode()
    assert 'taskgate_worker_settled_total{outcome="completed"} 3' in metrics
    assert 'taskgate_worker_settled_total{outcome="failed"} 1' in metrics
    assert "taskgate_worker_claimed_total 4" in metrics
