"""Starting and stopping: exit codes, refusals, addresses."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psycopg
import pytest

from tests.api.api_process import DEADLINE, ApiProcess


def ended(process: ApiProcess) -> int:
    code = process.process.wait(DEADLINE)
    process.log.join()
    return code


def test_says_where_it_listens_and_stops_when_told(database: str) -> None:
    with ApiProcess(database) as api:
        assert api.url.startswith("http://127.0.0.1:")
    assert api.process.returncode == 0
    assert len(api.events("api_stopped")) == 1


def test_says_when_it_listens_on_all_addresses(database: str) -> None:
    with ApiProcess(database, TASKGATE_HOST="0.0.0.0") as api:
        started = api.events("api_started")[0]
    assert started["host"] == "0.0.0.0"
    assert started["url"] == f"http://127.0.0.1:{started['port']}"


@pytest.mark.parametrize(("version", "remedy"), [(0, "run `taskgate migrate`"), (999, "upgrade taskgate")])
def test_a_schema_out_of_range_is_refused(database: str, version: int, remedy: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE taskgate.schema_version SET version = %s", (version,))
    api = ApiProcess(database).start()
    assert ended(api) == 3
    assert remedy in api.events("schema_mismatch")[0]["error"]


def test_a_database_that_was_never_migrated_is_refused(empty_database: str) -> None:
    api = ApiProcess(empty_database).start()
    assert ended(api) == 3
    assert "run `taskgate migrate`" in api.events("schema_mismatch")[0]["error"]


def test_a_port_that_is_taken(database: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        api = ApiProcess(database, TASKGATE_PORT=str(taken.getsockname()[1])).start()
        assert ended(api) == 4
    assert "in use" in api.events("address_unusable")[0]["error"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("DATABASE_URL", ""), ("DATABASE_URL", "mysql://x"), ("TASKGATE_PORT", "x"), ("TASKGATE_API_KEYS", "nocolon")],
)
def test_wrong_settings(setting: str, value: str) -> None:
    api = ApiProcess("postgresql://127.0.0.1:9/none", **{setting: value}).start()
    assert ended(api) == 2
    event = api.events("settings_wrong")[0]
    assert setting in event.get("setting", "") + event["error"]


def test_a_refused_login_is_said_and_tried_again(database: str) -> None:
    parts = urlsplit(database)
    wrong = urlunsplit(parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}"))
    with ApiProcess(wrong) as api, httpx2.Client(base_url=api.url, trust_env=False) as client:
        assert client.get("/readyz").status_code == 503
        assert client.post("/tasks", json={"prompt": "x"}).json()["code"] == "database_unavailable"
        said = api.events("database_lost")[0]
        assert "password authentication failed" in said["error"]
        assert (said["level"], said["hint"]) == ("error", "check DATABASE_URL; it goes on trying")
        place = (parts.hostname, str(parts.port), parts.path[1:], parts.username)
        assert (said["host"], said["port"], said["database"], said["user"]) == place
