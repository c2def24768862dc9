"""One `up` a data folder: its lock, and the end of what a killed one left running."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

from taskgate.local import state
from taskgate.local.account import LocalError
from taskgate.local.service import Say

LEFTOVER_SECONDS = 50


class FolderLock:
    """Held while an `up` uses the folder; the system releases it when the process is gone, however it went.

    Raises LocalError that names the other process when it is taken.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self._descriptor = os.open(data / "up.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 20, 0).decode().strip() or "unknown"
            os.close(self._descriptor)
            raise LocalError(
                f"taskgate up runs already on {data} (process {holder}). Stop that one, or name another folder "
                "with --data."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)


def end_leftovers(data: Path, say: Say) -> None:
    """Ends children of an `up` that was killed. Who calls holds the lock, so nobody else owns them.

    Their guards do the same; a process is named by its id and start time, so no stranger is hit.
    """
    last = state.read(data)
    if last is None:
        return
    left = dict(last.children)
    deadline = time.monotonic() + LEFTOVER_SECONDS
    asked: set[str] = set()
    while left:
        for name, (pid, started) in list(left.items()):
            if not started or state.process_started(pid) != started:
                del left[name]
                continue
            number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
            if name not in asked or number == signal.SIGKILL:
                if name not in asked:
                    say(f"ending {name} (process {pid}), which an earlier up left running")
                asked.add(name)
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    del left[name]
        time.sleep(0.05)
    state.clear(data)
