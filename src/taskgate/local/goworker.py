"""Builds the Go worker for `taskgate up --worker go`, or finds one that is built."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from taskgate.local.account import LocalError
from taskgate.local.service import Say, Service

PROGRAM = "taskgate-worker"


def go_worker(data: Path, environment: Mapping[str, str], say: Say, cancelled: Callable[[], bool]) -> Path | None:
    """The program; None when we were cancelled. Raises LocalError with what is missing."""
    root = Path(__file__).resolve().parents[3]
    source, script = root / "go" / "cmd" / PROGRAM, root / "scripts" / "go.sh"
    if not (source.is_dir() and script.is_file()):
        found = shutil.which(PROGRAM)
        if found is not None:
            return Path(found)
        raise LocalError(
            f"The Go worker's source is not here ({source}), and no `{PROGRAM}` is in PATH. Run `taskgate up` from "
            "a clone of the repository, put the program in PATH, or use --worker python."
        )
    say("building the Go worker (the first time fetches its modules) …")
    target = data / "bin" / PROGRAM
    target.parent.mkdir(exist_ok=True)
    command = [str(script), "build", "-trimpath", "-o", str(target), f"./cmd/{PROGRAM}"]
    build = Service(
        "go", command, {**environment, "TASKGATE_PYTHON": sys.executable}, data / "logs", say, show_all=True
    )
    build.start()
    while (code := build.ended()) is None:
        if cancelled():
            build.kill()
            return None
        time.sleep(0.05)
    if code != 0:
        raise LocalError(
            "The Go worker could not be built (see above). It needs the Go toolchain, from this machine or from the "
            "package index, and the module proxy for its modules. Use --worker python without them."
        )
    return target
