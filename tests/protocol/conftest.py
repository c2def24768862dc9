"""Connections to a fresh, migrated database, and the servers that the long tests run on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import psycopg
import pytest

from taskgate.local.postgres import EmbeddedPostgres
from tests.conftest import SPEED, make_folder
from tests.protocol.origin import OriginWorker
from tests.protocol.tools import Db


@pytest.fixture
def db(database: str) -> Iterator[Db]:
    with Db(database) as db:
        yield db


@pytest.fixture
def origin(database: str) -> Iterator[OriginWorker]:
    worker = OriginWorker(psycopg.connect(database))
    yield worker
    worker.close()


@pytest.fixture(scope="session", params=["18", "15"])
def either_postgres(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """PostgreSQL 18 and Debian's 15, one after the other."""
    if request.param == "18":
        yield request.getfixturevalue("postgres")
        return
    bin_dir = request.getfixturevalue("postgres15_bin")
    folder = make_folder()
    try:
        with EmbeddedPostgres(folder, bin_dir=bin_dir, port=0, settings=SPEED) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
