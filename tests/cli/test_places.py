"""Where commands go: a URL that cannot be, and an API and a database that do not belong together."""

from __future__ import annotations

import pytest

from taskgate.cli import places
from taskgate.local import state
from taskgate.settings import Settings
from tests.cli.conftest import run
from tests.programs import environment

COMMANDS = [["list"], ["list", "--all"], ["get", "x"], ["get", "x", "--wait"], ["cancel", "x"], ["retry", "x"],
            ["submit", "hello"], ["watch"], ["watch", "x"]]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_url_without_its_scheme_is_said_plainly(command: list[str]) -> None:
    ran = run(environment(TASKGATE_URL="127.0.0.1:18432"), *command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        "Error: '127.0.0.1:18432' is no URL of an API: it begins with http:// or https:// and names a host, "
        "like http://127.0.0.1:8000",
        "  Set TASKGATE_URL (or --url) to http://127.0.0.1:18432.",
    ]


@pytest.mark.parametrize("url", ["localhost:1", "ftp://h", "http://", "http://[::1", "http://h:port", "http://h:0"])
def test_other_urls_that_cannot_be(url: str) -> None:
    ran = run(environment(), "list", "--json", "--url", url)
    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert ran.error["message"].startswith(f"'{url}' is no URL of an API")


UP_DSN = "postgresql://taskgate:hidden@127.0.0.1:5544/taskgate"
UP = state.State(1, "", "http://127.0.0.1:8000", UP_DSN, "/d", "m")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "TASKGATE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(state, "find", lambda: UP)
    places.note.cache_clear()


@pytest.mark.parametrize(
    ("database_url", "split"),
    [
        ("postgresql://app:secret@db.example/tasks", True),
        ("postgresql://app:secret@localhost:5544/other", True),
        ("postgresql://app:secret@localhost/taskgate", True),
        ("postgresql://other:secret@localhost:5544/taskgate", False),
        (UP_DSN, False),
        ("", False),
    ],
)
def test_an_up_whose_database_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str, split: bool
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    assert [places.api_place()[0] for _ in range(2)] == [UP.url] * 2
    said = (
        "TASKGATE_URL is not set: using the API of the running `taskgate up`, http://127.0.0.1:8000, which works on "
        "postgresql://127.0.0.1:5544/taskgate, not on the database of DATABASE_URL\n"
    )
    assert capsys.readouterr().err == (said if split else "")
    assert places.api_place("http://given")[0] == "http://given"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("url", "split"),
    [
        ("http://api.example", True),
        ("http://127.0.0.1:8001", True),
        ("http://localhost:8000/", False),
        ("http://127.0.0.1:8000", False),
        ("", False),
    ],
)
def test_an_up_whose_api_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, split: bool
) -> None:
    monkeypatch.setenv("TASKGATE_URL", url)
    assert [places.database_place(Settings()).url for _ in range(2)] == [UP_DSN] * 2
    said = (
        "DATABASE_URL is not set: using that of the running `taskgate up`, postgresql://127.0.0.1:5544/taskgate; "
        f"TASKGATE_URL names another API, {url}\n"
    )
    assert capsys.readouterr().err == (said if split else "")
    places.note.cache_clear()
    places.database_place(Settings(), quiet=True)
    assert capsys.readouterr().err == ""
