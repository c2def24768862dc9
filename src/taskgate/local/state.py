"""What a running `taskgate up` leaves in a file, so that other commands of this user find it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from taskgate.local.account import LocalError

STATE_FILE = "state.json"
POINTER_FILE = "running.json"


@dataclass(frozen=True)
class State:
    """One running `taskgate up`. `children` maps a name to (process id, when it started)."""

    pid: int
    started: str
    url: str
    """The API."""
    dsn: str
    """The database; with the password."""
    data: str
    """The folder with its data."""
    model: str
    children: dict[str, tuple[int, str]] = field(default_factory=dict)
    model_settings: dict[str, str] = field(default_factory=dict)
    """The variables that lead a worker to the model of this `up`; none when the model is the user's own."""


def default_data_dir() -> Path:
    """Where `taskgate up` keeps its data when no folder is named: the platform's place for a user's data.

    For root it is the system's, which the unprivileged user that runs PostgreSQL can reach. Raises LocalError.
    """
    configured = os.environ.get("XDG_DATA_HOME", "")
    if configured.startswith("/") and sys.platform != "darwin":
        return Path(configured, "taskgate")
    if os.geteuid() == 0:
        system = "/Library/Application Support" if sys.platform == "darwin" else "/var/lib"
        return Path(system, "taskgate")
    home = os.environ.get("HOME", "")
    if not home or not Path(home).is_dir():
        raise LocalError(
            'HOME names no folder, so there is no place for the data: name one with --data (make up ARGS="--data DIR").'
        )
    if sys.platform == "darwin":
        return Path(home, "Library", "Application Support", "taskgate")
    return Path(home, ".local", "share", "taskgate")


def process_started(pid: int) -> str | None:
    """When a process started, in the system's own words; None when there is no such process.

    The pair (pid, started) names a process for good, a pid alone may have gone to another one.
    """
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
        return None if fields[0] in "ZX" else fields[19]
    run = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return run.stdout.strip() or None


def write(state: State) -> None:
    """Writes the state, and the pointer to it where a pointer can be written."""
    _write_private(Path(state.data) / STATE_FILE, asdict(state))
    with contextlib.suppress(OSError, LocalError):
        place = default_data_dir()
        place.mkdir(mode=0o711, parents=True, exist_ok=True)
        _write_private(place / POINTER_FILE, {"state": str(Path(state.data) / STATE_FILE)})


def clear(data: Path) -> None:
    """Forgets a state. The pointer stays: it leads nowhere then."""
    (data / STATE_FILE).unlink(missing_ok=True)


def read(data: Path) -> State | None:
    """What the last `up` on this folder wrote, running or not."""
    return _load(data / STATE_FILE)


def find() -> State | None:
    """The running `taskgate up` of this user that started last; None when none runs."""
    try:
        place = default_data_dir()
    except LocalError:
        return None
    candidates = [place / STATE_FILE]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pointer = json.loads((place / POINTER_FILE).read_text(encoding="utf-8"))
        candidates.insert(0, Path(pointer["state"]))
    for file in candidates:
        state = _load(file)
        if state is not None and process_started(state.pid) == state.started:
            return state
    return None


def _load(file: Path) -> State | None:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        raw["children"] = {name: (int(pid), str(started)) for name, (pid, started) in raw["children"].items()}
        return State(**raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_private(file: Path, value: object) -> None:
    """Replaces a file at once, readable by its owner alone."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(value, handle, indent=2)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
