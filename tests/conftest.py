"""What every test may ask for: a PostgreSQL of its own kind, and a fresh migrated database in it."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from taskgate.settings import Settings

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
TEMPLATE = "taskgate_template"

# The tests that restart PostgreSQL start one of their own, with fsync on.
SPEED = {"fsync": "off", "full_page_writes": "off", "max_connections": "300", "shared_buffers": "64MB"}


def make_folder() -> Path:
    """A folder that PostgreSQL's own user can reach, also when root runs the tests (tmp_path is private)."""
    folder = Path(tempfile.mkdtemp(prefix="taskgate-test-", dir="/tmp"))
    folder.chmod(0o711)
    return folder


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A folder for a PostgreSQL that the test starts itself; removed afterwards."""
    folder = make_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL 18 for all tests of this process, on a loopback port. Never stop or restart it."""
    folder = make_folder()
    try:
        with EmbeddedPostgres(folder, port=0, settings=SPEED) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database that was migrated once, to be copied."""
    dsn = postgres.create_database(TEMPLATE)
    migrate(dsn, configured=Settings(database_url=dsn).fleet_values())
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {TEMPLATE} WITH ALLOW_CONNECTIONS false")
    return TEMPLATE


@pytest.fixture
def make_database(postgres: EmbeddedPostgres) -> Iterator[Callable[[str | None], str]]:
    """Creates a database from a template (None: empty) and answers its URL; drops them all afterwards."""
    names: list[str] = []

    def make(template: str | None) -> str:
        names.append(f"t_{uuid.uuid4().hex}")
        return postgres.create_database(names[-1], template)

    yield make
    for name in names:
        postgres.drop_database(name)


@pytest.fixture
def database(make_database: Callable[[str | None], str], migrated_template: str) -> str:
    """The URL of a fresh, migrated database."""
    return make_database(migrated_template)


@pytest.fixture
def empty_database(make_database: Callable[[str | None], str]) -> str:
    """The URL of a fresh database with nothing in it."""
    return make_database(None)


@pytest.fixture(scope="session")
def postgres15_bin() -> Path:
    """Debian's PostgreSQL 15; skips where it is not installed (`apt-get install postgresql-15`)."""
    if not (DEBIAN_15 / "postgres").exists():
        pytest.skip(f"NOT TESTED against PostgreSQL 15: {DEBIAN_15} is missing (apt-get install postgresql-15)")
    return DEBIAN_15
