"""The machine that measures: what it is, and whether it is quiet enough for a figure to mean anything."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_LOAD = 0.7
MAX_BUSY = 0.05
SAMPLE_SECONDS = 3.0
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Quiet:
    """The load average of the last minute, and the part of the processors' time in use over three seconds."""

    load: float
    busy: float

    @property
    def enough(self) -> bool:
        """The load average remembers the run before this one; processors that idle now are as good a sign."""
        return self.load <= MAX_LOAD or self.busy <= MAX_BUSY

    def __str__(self) -> str:
        return f"load average {self.load:.2f}, processors {self.busy:.0%} busy"


def _ticks() -> tuple[int, int]:
    """Ticks of all processors: in all, and idle."""
    values = [int(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(values), values[3] + values[4]


def look() -> Quiet:
    total, idle = _ticks()
    time.sleep(SAMPLE_SECONDS)
    total_after, idle_after = _ticks()
    return Quiet(os.getloadavg()[0], 1 - (idle_after - idle) / max(1, total_after - total))


def wait_until_quiet(patience: float = PATIENCE_SECONDS) -> Quiet:
    """What it was at last; not `enough` when other work did not end within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        quiet = look()
        if quiet.enough or time.monotonic() > deadline:
            return quiet


def describe() -> str:
    """Processor, memory, system and the languages' versions, in a line."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return (
        f"{os.cpu_count()} cores ({cpu[1] if cpu else platform.machine()}), {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, {_go_version()}"
    )


def _go_version() -> str:
    try:
        run = subprocess.run(
            ["sh", str(ROOT / "scripts/go.sh"), "version"],
            env={**os.environ, "TASKGATE_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "no Go"
    return " ".join(run.stdout.split()[2:3]).replace("go", "Go ", 1)
