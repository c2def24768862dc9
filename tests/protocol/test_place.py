"""Where a database URL leads, without its password."""

from __future__ import annotations

import getpass

import pytest

from taskgate.protocol.place import DatabasePlace, database_place


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)


ME = getpass.getuser()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:s@h:6432/d", ("h", "6432", "d", "u")),
        ("postgres://u:s%40x@h/d?sslmode=require", ("h", "5432", "d", "u")),
        ("postgresql://u%40x:s@[::1]:7/d%20e", ("::1", "7", "d e", "u@x")),
        ("postgresql://u@[fe80::2]", ("fe80::2", "5432", "u", "u")),
        ("postgresql://u:s@a,b:7,c:8/d", ("a,b,c", "5432,7,8", "d", "u")),
        ("postgresql:///d?host=/run/pg&port=9&user=u&password=s", ("/run/pg", "9", "d", "u")),
        ("postgresql://", ("localhost", "5432", ME, ME)),
        ("postgresql://[oops", ("", "", "", "")),
    ],
)
def test_a_url_is_read(url: str, place: tuple[str, str, str, str]) -> None:
    assert database_place(url) == DatabasePlace(*place)


def test_the_environment_fills_the_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PGHOST", "eh"), ("PGPORT", "6"), ("PGUSER", "eu"), ("PGDATABASE", "ed")):
        monkeypatch.setenv(name, value)
    assert database_place("postgresql://") == DatabasePlace("eh", "6", "ed", "eu")
    assert database_place("postgresql://h:1/d?user=u") == DatabasePlace("h", "1", "d", "u")


def test_the_same_database_under_another_login() -> None:
    mine = database_place("postgresql://u:s@localhost/d")
    assert mine.is_where(database_place("postgresql://other@127.0.0.1:5432/d"))
    assert not mine.is_where(database_place("postgresql://u:s@localhost/e"))
    assert not mine.is_where(database_place("postgresql://u:s@localhost:1/d"))
    assert not mine.is_where(database_place("postgresql://u:s@h/d"))
