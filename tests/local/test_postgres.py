"""EmbeddedPostgres against the real programs: its life, its crashes, and who may stand in its way."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from taskgate.local.account import LocalError
from taskgate.local.postgres import EmbeddedPostgres
from tests.local.helpers import alive, count, keep_one
from tests.waiting import until

START_AND_WAIT = """
import sys
from pathlib import Path
from taskgate.local.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), port=0).start()
print(server.pid, server._child._guard.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(server_folder, port=0) as started:
        yield started


def test_data_outlives_stop_crash_and_kill(server: EmbeddedPostgres) -> None:
    port, first_pid = server.port, server.pid
    keep_one(server)
    server.restart()
    assert count(server) == 1
    keep_one(server)
    server.restart("immediate")
    assert count(server) == 2
    keep_one(server)
    server.kill()
    assert not server.running
    server.start()
    assert count(server) == 3
    assert server.port == port
    assert server.pid != first_pid


def test_another_object_finds_the_data_again(server_folder: Path) -> None:
    with EmbeddedPostgres(server_folder) as first:
        keep_one(first)
        socket_dsn = first.dsn
        with pytest.raises(LocalError, match="no TCP port"):
            _ = first.port
    assert "host=%2F" in socket_dsn
    with EmbeddedPostgres(server_folder, port=0) as second:
        assert count(second) == 1


def test_the_password_is_asked_for_and_private(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host="127.0.0.1", port=server.port, user="postgres", dbname="postgres", password="wrong")
    assert stat.S_IMODE((server.data_dir / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE((server.data_dir / "run").stat().st_mode) == 0o700


def test_it_listens_on_loopback_only(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SHOW listen_addresses").fetchone()
    assert row == ("127.0.0.1",)


def test_a_locale_that_does_not_exist_and_pg_variables_do_no_harm(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    monkeypatch.setenv("LANG", "xx_XX.UTF-8")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    with EmbeddedPostgres(server_folder, port=0) as server:
        keep_one(server)
        with psycopg.connect(server.dsn) as connection:
            row = connection.execute(
                "SELECT length(word), current_setting('server_encoding'), current_setting('lc_messages') FROM kept"
            ).fetchone()
    assert row == (3, "UTF8", "C")


def test_a_second_server_on_the_same_data_is_refused_by_name(server: EmbeddedPostgres) -> None:
    with pytest.raises(LocalError, match=f"in use by process {os.getpid()}"):
        EmbeddedPostgres(server.data_dir).start()
    keep_one(server)  # and the first one is unharmed


def test_a_port_that_is_taken_is_an_error_with_postgres_own_words(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskgate.local.postgres.PASSING_SECONDS", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = EmbeddedPostgres(server_folder, port=taken.getsockname()[1])
        with pytest.raises(LocalError, match="could not bind"):
            wanted.start()
    assert not wanted.running
    wanted.start()
    wanted.stop()


def test_it_ends_when_its_parent_is_killed(server_folder: Path) -> None:
    with start_elsewhere(server_folder) as (parent, postmaster, _):
        parent.kill()
        parent.wait()
        until("the orphaned server to end", lambda: not alive(postmaster))
    with EmbeddedPostgres(server_folder) as again:
        keep_one(again)


def test_an_orphan_whose_guard_was_killed_too_is_ended_by_the_next_start(server_folder: Path) -> None:
    with start_elsewhere(server_folder) as (parent, postmaster, guard):
        os.kill(guard, signal.SIGKILL)
        until("the guard to end", lambda: not alive(guard))
        parent.kill()
        parent.wait()
        assert alive(postmaster)
        with EmbeddedPostgres(server_folder) as again:
            assert not alive(postmaster)
            keep_one(again)


def test_a_pid_file_that_names_a_stranger_is_no_hindrance(server_folder: Path) -> None:
    with EmbeddedPostgres(server_folder) as server:
        server.kill()
        pid_file = server.data_dir / "pgdata" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
        server.start()
        keep_one(server)


def test_an_initialisation_that_was_cut_short_begins_anew(server_folder: Path) -> None:
    (server_folder / "pgdata.partial" / "base").mkdir(parents=True)
    (server_folder / "pgdata.partial" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(server_folder) as server:
        keep_one(server)
        assert not (server_folder / "pgdata.partial").exists()


def test_a_long_path_gets_its_socket_elsewhere(server_folder: Path) -> None:
    deep = server_folder / ("d" * 60) / ("e" * 60)
    for folder in (deep.parent, deep):
        folder.mkdir()
        folder.chmod(0o711)
    with EmbeddedPostgres(deep) as server:
        keep_one(server)
        sockets = server._sockets
        assert sockets is not None
        assert len(str(sockets)) < 80
    assert not sockets.exists()


def test_a_lost_password_and_foreign_data_are_told(server_folder: Path) -> None:
    with EmbeddedPostgres(server_folder, port=0) as server:
        keep_one(server)
    (server_folder / "password").rename(server_folder / "put-away")
    with EmbeddedPostgres(server_folder, port=0) as server, pytest.raises(LocalError, match="Put it back"):
        _ = server.dsn
    (server_folder / "pgdata" / "PG_VERSION").rename(server_folder / "version")
    with pytest.raises(LocalError, match="no PostgreSQL data"):
        EmbeddedPostgres(server_folder).start()


def test_debians_15_runs_and_does_not_take_18s_data(server_folder: Path, postgres15_bin: Path) -> None:
    old, new = server_folder / "old", server_folder / "new"
    for folder in (old, new):
        folder.mkdir(mode=0o711)
    with EmbeddedPostgres(old, bin_dir=postgres15_bin, port=0) as fifteen:
        keep_one(fifteen)
        with psycopg.connect(fifteen.dsn) as connection:
            assert connection.info.server_version // 10000 == 15
    with EmbeddedPostgres(new):
        pass
    with pytest.raises(LocalError, match=r"belongs to PostgreSQL 18, the programs are 15"):
        EmbeddedPostgres(new, bin_dir=postgres15_bin).start()


def test_databases_come_from_templates_and_go_with_their_sessions(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.create_database("odd \"name'"), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (word text)")
    copy = server.create_database("copy", "odd \"name'")
    with psycopg.connect(copy) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        server.drop_database("copy")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


class start_elsewhere:
    """A process that holds a server: answers (process, postmaster's pid, guard's pid)."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", START_AND_WAIT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._postmaster = 0

    def __enter__(self) -> tuple[subprocess.Popen[str], int, int]:
        assert self._process.stdout is not None
        pids = self._process.stdout.readline().split()
        self._postmaster = int(pids[0])
        return self._process, self._postmaster, int(pids[1])

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        if alive(self._postmaster):
            os.kill(self._postmaster, signal.SIGQUIT)
