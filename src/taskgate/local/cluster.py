"""The data of an embedded PostgreSQL: made by initdb, found again, freed of a server that lost its parent."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from taskgate.local.account import Account, LocalError, private_directory
from taskgate.local.binaries import major_version

ORPHAN_FAST_SECONDS = 30
ORPHAN_GIVE_UP_SECONDS = 60


def server_environment() -> dict[str, str]:
    """Nothing of ours reaches the server: no PG* variables, no locale that may not exist here."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "LANG": "C", "TZ": "UTC"}


class Cluster:
    """`pgdata` and `password` below `data_dir`. Who calls holds the lock on the folder."""

    def __init__(self, data_dir: Path, account: Account | None) -> None:
        self.data_dir = data_dir
        self.pgdata = data_dir / "pgdata"
        self._account = account

    def prepare(self, bin_dir: Path) -> None:
        """Makes the data when there is none, and sees that nothing is in the way. Raises LocalError."""
        self._end_orphan()
        version_file = self.pgdata / "PG_VERSION"
        if not version_file.exists():
            self._initdb(bin_dir)
        data, programs = version_file.read_text(encoding="ascii").strip(), major_version(bin_dir)
        if data != programs:
            raise LocalError(
                f"The data in {self.pgdata} belongs to PostgreSQL {data}, the programs are {programs}. "
                f"Dump it with PostgreSQL {data}, or name another folder."
            )

    def password(self) -> str:
        """The superuser's password. Raises LocalError when its file is lost."""
        file = self.data_dir / "password"
        try:
            return file.read_text(encoding="ascii")
        except FileNotFoundError:
            raise LocalError(
                f"{file} is missing, the password that belongs to the data in {self.pgdata}. "
                "Put it back, or move the data away to begin anew."
            ) from None

    def _initdb(self, bin_dir: Path) -> None:
        """Makes the data beside its final place: a start that is cut short leaves nothing half-made."""
        if self.pgdata.exists():
            raise LocalError(f"{self.pgdata} exists and is no PostgreSQL data. Move it away, or name another folder.")
        fresh = self.data_dir / "pgdata.partial"
        shutil.rmtree(fresh, ignore_errors=True)
        private_directory(fresh, self._account)
        password = secrets.token_urlsafe(24)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(self.data_dir / "password", flags, 0o600), "w", encoding="ascii") as file:
            file.write(password)
        with tempfile.NamedTemporaryFile("w", encoding="ascii", prefix="taskgate-", dir="/tmp") as handed:
            handed.write(password)
            handed.flush()
            if self._account is not None:
                os.fchown(handed.fileno(), self._account.uid, self._account.gid)
            arguments = [
                "-D",
                str(fresh),
                "-U",
                "postgres",
                "--no-locale",
                "-E",
                "UTF8",
                "-A",
                "scram-sha-256",
            ]
            run = subprocess.run(
                [str(bin_dir / "initdb"), *arguments, f"--pwfile={handed.name}", "--no-instructions"],
                env=server_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                user=self._account.uid if self._account else None,
                group=self._account.gid if self._account else None,
                extra_groups=[] if self._account else None,
            )
        if run.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise LocalError(f"initdb failed in {self.data_dir}:\n{run.stdout.strip()}")
        fresh.rename(self.pgdata)

    def _end_orphan(self) -> None:
        """Ends a server whose parent was killed: we hold the lock, so nobody uses it any more."""
        pid_file = self.pgdata / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        started = time.monotonic()
        while self._is_postmaster(pid):
            waited = time.monotonic() - started
            if waited > ORPHAN_GIVE_UP_SECONDS:
                raise LocalError(f"An older PostgreSQL on {self.pgdata} does not end: stop process {pid}.")
            try:
                os.kill(pid, signal.SIGINT if waited < ORPHAN_FAST_SECONDS else signal.SIGQUIT)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        # a process of another kind that has the number now would keep PostgreSQL from starting
        pid_file.unlink(missing_ok=True)

    def _is_postmaster(self, pid: int) -> bool:
        if sys.platform == "linux":
            try:
                return os.readlink(f"/proc/{pid}/cwd") == str(self.pgdata.resolve())  # its folder is its data
            except OSError:
                return False
        ps = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
        return f"-D {self.pgdata}" in ps.stdout
