"""The programs that are measured, each a process of its own; and what the kernel says of a process."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.machine import ROOT
from taskgate.local.ports import free_port
from taskgate.local.process import ChildProcess

START_SECONDS = 60.0
FOREIGN = ("TASKGATE_", "OPENAI_", "GEMINI_", "GOOGLE_", "PG")


def environment(**values: str) -> dict[str, str]:
    """This process's environment without settings of whoever runs the comparison, plus `values`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in ("DATABASE_URL", "MAX_CONCURRENT_TASKS")
    }
    return {**kept, "TASKGATE_LOG_FORMAT": "json", "PYTHONPATH": str(ROOT), **values}


@contextmanager
def process(command: Sequence[str], env: Mapping[str, str], name: str = "") -> Iterator[ChildProcess]:
    """Runs for as long as the block. Raises RuntimeError with its last words if it ended before."""
    with tempfile.TemporaryFile(prefix="taskgate-bench-") as log:
        child = ChildProcess(command, env=env, output=log)
        try:
            yield child
        except BaseException as error:
            if child.poll() is not None:
                raise RuntimeError(f"{name or command[0]} ended with {child.poll()}:\n{_tail(log.fileno())}") from error
            raise
        finally:
            child.stop(20.0)


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 4000, max(0, size - 4000)).decode(errors="replace").strip()


def until(what: str, probe: Callable[[], bool], seconds: float = START_SECONDS, every: float = 0.05) -> None:
    """Waits for `probe`. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(every)


def _answers(url: str, child: ChildProcess) -> bool:
    if child.poll() is not None:
        raise RuntimeError("it ended")
    try:
        request(url, "GET", "/healthz")
    except (OSError, http.client.HTTPException):
        return False
    return True


@contextmanager
def api(dsn: str, **values: str) -> Iterator[tuple[str, ChildProcess]]:
    """taskgate's API in one process: its address, and the process."""
    port = free_port()
    env = environment(DATABASE_URL=dsn, TASKGATE_HOST="127.0.0.1", TASKGATE_PORT=str(port), **values)
    with process([sys.executable, "-m", "taskgate.api"], env, "the API") as child:
        url = f"http://127.0.0.1:{port}"
        until("the API answers", lambda: _answers(url, child))
        yield url, child


@contextmanager
def uvicorn(app: str, **values: str) -> Iterator[tuple[str, ChildProcess]]:
    """Another application in one uvicorn process with the flags that the API has."""
    port = free_port()
    command = [*(sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port))]
    command += [*("--loop", "uvloop", "--http", "httptools", "--ws", "none", "--lifespan", "on", "--backlog", "2048")]
    command += [*("--no-access-log", "--no-server-header", "--no-proxy-headers", "--timeout-keep-alive", "65")]
    command += ["--log-level", "warning"]
    with process(command, environment(**values), app) as child:
        url = f"http://127.0.0.1:{port}"
        until(f"{app} answers", lambda: _answers(url, child))
        yield url, child


def python_worker(dsn: str, slots: int, types: str = "noop", **values: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the Python worker with the handlers of bench/noop.py."""
    command = [sys.executable, "-m", "taskgate.worker", "--app", "bench.noop:handlers", "--types", types]
    return command, environment(DATABASE_URL=dsn, TASKGATE_SLOTS=str(slots), **values)


def go_worker(
    program: Path, dsn: str, slots: int, types: str = "noop", **values: str
) -> tuple[list[str], dict[str, str]]:
    """The same of the Go worker go/internal/noop."""
    return [str(program), *types.split(",")], environment(DATABASE_URL=dsn, TASKGATE_SLOTS=str(slots), **values)


def build_go(folder: Path, package: str = "./internal/noop") -> Path:
    """Builds a Go program. Raises subprocess.CalledProcessError."""
    target = folder / package.rsplit("/", 1)[-1]
    command = ["sh", str(ROOT / "scripts/go.sh"), "build", "-trimpath", "-ldflags", "-s -w", "-o", str(target), package]
    subprocess.run(command, check=True, env={**os.environ, "CGO_ENABLED": "0", "TASKGATE_PYTHON": sys.executable})
    target.chmod(0o755)
    return target


def request(url: str, method: str, path: str, body: bytes = b"", media_type: str = "application/json") -> bytes:
    """One request on a connection of its own. Raises OSError; RuntimeError for an answer of 500 or more."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=120)
    try:
        connection.request(method, path, body, {"Content-Type": media_type} if body else {})
        answer = connection.getresponse()
        found = answer.read()
    finally:
        connection.close()
    if answer.status >= 500 and path != "/healthz":
        raise RuntimeError(f"{method} {path}: {answer.status} {found[:500].decode(errors='replace')}")
    return found


def memory(pid: int, field: str = "VmRSS") -> float:
    """MiB from /proc/PID/status: VmRSS now, VmHWM at its highest, RssAnon without files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field}")


def forget_peak(pid: int) -> None:
    """VmHWM starts anew (Linux, for processes of the same user)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(root: int) -> float:
    """Processor time of a process, its children, and those of them that have ended and were waited for."""
    times: dict[int, tuple[int, float]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid, parent = int(entry.name), int(fields[1])
        own = int(fields[11]) + int(fields[12])
        ended = int(fields[13]) + int(fields[14])
        times[pid] = (parent, (own + ended) / tick)
    return sum(spent for pid, (parent, spent) in times.items() if root in (pid, parent))
