"""Who runs PostgreSQL, and where that user can reach. PostgreSQL refuses to run as root."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pwd
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


class LocalError(Exception):
    """Something on this machine is in the way; the text says what and how to go on."""


@dataclass(frozen=True)
class Account:
    """A user of this machine without rights of its own."""

    name: str
    uid: int
    gid: int

    def can(self, test: str, path: Path) -> bool:
        """What `test -r|-w|-x PATH` says when this user asks: the kernel decides, no guess."""
        command = ["/bin/sh", "-c", 'test "$1" "$2"', "sh", test, str(path)]
        return subprocess.run(command, user=self.uid, group=self.gid, extra_groups=[], cwd="/").returncode == 0

    def runs(self, program: Path) -> bool:
        """Whether this user can run a program, with the libraries it needs; asks for its version."""
        try:
            run = subprocess.run(
                [program, "--version"],
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
            )
        except OSError:
            return False
        return run.returncode == 0


def server_account(data: Path) -> Account | None:
    """Who the server runs as: None for ourselves, an unprivileged user that exists when we are root.

    The owner of existing `data` is kept, so that data stays usable when a `postgres` user appears later.
    """
    if os.geteuid() != 0:
        return None
    entries: list[pwd.struct_passwd] = []
    with contextlib.suppress(FileNotFoundError, KeyError):
        entries.append(pwd.getpwuid(data.stat().st_uid))
    for name in ("postgres", "nobody"):
        try:
            entries.append(pwd.getpwnam(name))
        except KeyError:
            continue
    for entry in entries:
        if entry.pw_uid != 0:
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise LocalError(
        "PostgreSQL cannot run as root, and this machine has neither a user `postgres` nor `nobody`. "
        "Run as an ordinary user, or set DATABASE_URL to a PostgreSQL of yours."
    )


def data_folder(wanted: Path) -> Path:
    """The `reachable_directory` for a folder that a person named. Raises LocalError when it cannot be one."""
    try:
        named = wanted.expanduser()
        if named.exists() and not named.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return reachable_directory(named, server_account(named / "postgres" / "pgdata"))
    except (OSError, RuntimeError) as error:  # RuntimeError: ~somebody who is not there
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise LocalError(f"{wanted} cannot be the folder for the data: {why}. Name another one with --data.") from None


def reachable_directory(wanted: Path, account: Account | None) -> Path:
    """Creates `wanted`, or another folder in its stead when `account` cannot reach it, and answers which.

    Folders that exist keep their modes: a private home stays private. The other folder is the same at every
    call: below the folder for temporary files when `wanted` is there, else below the system's state folder.
    """
    wanted = Path(os.path.abspath(wanted.expanduser()))
    if account is None:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        return wanted
    if _make(wanted, account):
        return wanted
    temporary = Path(tempfile.gettempdir())
    state = Path("/Library/Application Support/taskgate" if sys.platform == "darwin" else "/var/lib/taskgate")
    name = hashlib.sha256(str(wanted).encode()).hexdigest()[:12]
    within_temporary = temporary.resolve() in wanted.resolve().parents
    instead = temporary / f"taskgate-{name}" if within_temporary else state / f"data-{name}"
    if _make(instead, account):
        return instead
    raise LocalError(
        f"PostgreSQL runs as `{account.name}` here because we are root, and that user can reach neither "
        f"{wanted} nor {instead}. Name a folder that it can reach with --data, for example /srv/taskgate."
    )


def _make(path: Path, account: Account) -> bool:
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(0o711)  # ours alone to write, open to pass through
    found = path.lstat()
    if found.st_uid not in (0, account.uid) and found.st_mode & 0o022:
        raise LocalError(f"{path} belongs to another user and others may write there. Name another folder.")
    return account.can("-x", path)


def private_directory(path: Path, account: Account | None) -> Path:
    """A folder only the server's user may enter, created when missing."""
    if not path.is_dir():
        path.mkdir(mode=0o700)
        if account is not None:
            os.chown(path, account.uid, account.gid)
    return path
