"""Whose processes and folders: root's server runs as somebody else, and nothing private is opened."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from taskgate.local.postgres import EmbeddedPostgres
from tests.local.helpers import count, environment_for, keep_one, nobody, python_for

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")


@as_root
def test_root_runs_it_as_somebody_else_and_private_folders_stay_private(server_folder: Path) -> None:
    home = server_folder / "home"
    home.mkdir(mode=0o700)
    with EmbeddedPostgres(home / "data", port=0) as server:
        keep_one(server)
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
        elsewhere = server.data_dir
        assert home not in elsewhere.parents
    try:
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        with EmbeddedPostgres(home / "data") as again:
            assert again.data_dir == elsewhere
            assert count(again) == 1
    finally:
        subprocess.run(["rm", "-rf", str(elsewhere)], check=True)


@as_root
def test_root_with_programs_in_a_private_folder_copies_them(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskgate.local import binaries

    private, package = server_folder / "private", binaries.wheel_prefix().parent
    private.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        (private / name).symlink_to(package.parent / name)
    monkeypatch.setattr(binaries, "wheel_prefix", lambda: private / package.name / "pginstall")
    with EmbeddedPostgres(server_folder / "data") as server:
        keep_one(server)
        assert os.readlink(f"/proc/{server.pid}/exe").startswith(str(server.data_dir))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@as_root
def test_an_ordinary_user_runs_it_from_a_private_home(server_folder: Path) -> None:
    account = nobody()
    python = python_for(account)
    if python is None:
        pytest.skip("no Python of this version that an ordinary user can run")
    home = server_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, account.uid, account.gid)
    script = """
import os, sys
from pathlib import Path
import psycopg
from taskgate.local.postgres import EmbeddedPostgres
for word in ("first", "second"):
    with EmbeddedPostgres(Path.home() / "data", port=0) as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (word text)")
            connection.execute("INSERT INTO kept VALUES (%s)", [word])
            print(connection.execute("SELECT string_agg(word, ' ') FROM kept").fetchone()[0], flush=True)
        server.restart("immediate")
"""
    run = subprocess.run(
        [python, "-c", script],
        env=environment_for(home, LC_ALL="fr_FR.UTF-8"),
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert run.stdout.splitlines() == ["first", "first second"], run.stderr
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "data").stat().st_mode) == 0o700
