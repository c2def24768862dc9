"""Log files of the programs that we start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

LOG_BYTES = 10 * 1024**2


def open_log(file: Path) -> IO[bytes]:
    """Opens a log to append to; a large one is put aside first."""
    if file.exists() and file.stat().st_size > LOG_BYTES:
        file.replace(file.with_suffix(".log.1"))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    return os.fdopen(descriptor, "ab")
