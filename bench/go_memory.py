"""Memory of the Go worker: `.venv/bin/python bench/go_memory.py`.

Measured from outside (RssAnon of /proc/PID/status), on a real PostgreSQL and over TLS with the system's own
certificates loaded: idle with one slot after 1,000 calls with answers of 2 KiB, and 20 slots with 20 calls running.
Also the binary's size, and the time from the start of the process to its first claim.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024**2
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LIMITS = {
    "binary_mib": 15.0,
    "first_claim_ms": 100.0,
    "idle_1_slot_mib": 6.0,
    "running_20_slots_mib": 12.0,
    "idle_20_slots_mib": 12.0,
}


def build(folder: Path, package: str) -> Path:
    target = folder / package.rsplit("/", 1)[-1]
    command = [str(ROOT / "scripts/go.sh"), "build", "-trimpath", "-ldflags", "-s -w", "-o", str(target), package]
    subprocess.run(command, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    return target


def rss_anon(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon")


def until(what: str, done: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


@contextmanager
def process(command: list[str], env: dict[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as log:
        child = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def settled(pid: int, seconds: float) -> float:
    """The memory after a while without work: the runtime has given back what it will."""
    time.sleep(seconds)
    return rss_anon(pid)


def count(db: psycopg.Connection[tuple[object, ...]], status: str) -> int:
    row = db.execute("SELECT count(*) FROM tasks WHERE status = %s", (status,)).fetchone()
    return int(str(row[0])) if row else 0


def submit(db: psycopg.Connection[tuple[object, ...]], prefix: str, number: int, prompt: str) -> None:
    db.execute(
        "INSERT INTO tasks (task_id, status, task_type, request) "
        "SELECT %s || i, 'pending', 'llm', jsonb_build_object('prompt', %s::text) FROM generate_series(1, %s) AS i",
        (prefix, prompt, number),
    )


def measure(folder: Path, calls: int, idle: float) -> dict[str, float]:
    worker, provider = build(folder, "./cmd/taskgate-worker"), build(folder, "./internal/tlsprovider")
    found: dict[str, float] = {"binary_mib": worker.stat().st_size / MIB}
    certificate = folder / "certificate.pem"
    with (
        EmbeddedPostgres(folder / "pg", port=0, settings={"fsync": "off"}) as server,
        process([str(provider), "-certificate", str(certificate)], {}, folder / "provider.log"),
    ):
        until("the provider", lambda: (folder / "provider.log").read_text().endswith("\n"))
        dsn = server.create_database("memory")
        migrate(dsn, configured={"max_concurrent": 20, "max_attempts": 3, "max_throttle": 3600, "result_ttl": 604800})
        bundle = folder / "bundle.pem"
        system = SYSTEM_CERTIFICATES.read_text() if SYSTEM_CERTIFICATES.exists() else ""
        bundle.write_text(system + certificate.read_text())
        env = {
            "DATABASE_URL": dsn,
            "OPENAI_BASE_URL": (folder / "provider.log").read_text().strip() + "/v1",
            "TASKGATE_LLM_MODEL": "tls",
            "TASKGATE_LOG_FORMAT": "json",
            "SSL_CERT_FILE": str(bundle),
        }
        with psycopg.connect(dsn, autocommit=True) as db:
            found["first_claim_ms"] = min(first_claim(worker, env, folder, db, i) for i in range(3))
            with process([str(worker)], {**env, "TASKGATE_SLOTS": "1"}, folder / "one.log") as one:
                submit(db, "one", calls, "hello")
                until("the calls", lambda: count(db, "completed") >= calls)
                found["after_calls_1_slot_mib"] = rss_anon(one.pid)
                found["idle_1_slot_mib"] = settled(one.pid, idle)
            db.execute("DELETE FROM tasks")
            with process([str(worker)], {**env, "TASKGATE_SLOTS": "20"}, folder / "twenty.log") as twenty:
                submit(db, "many", calls, "hello")
                until("the calls", lambda: count(db, "completed") >= calls)
                submit(db, "slow", 20, f"wait:{idle + 6:.0f}s ")
                until("20 running", lambda: count(db, "running") == 20)
                time.sleep(1)
                found["running_20_at_once_mib"] = rss_anon(twenty.pid)
                found["running_20_slots_mib"] = settled(twenty.pid, idle - 1)
                until("the slow calls", lambda: count(db, "completed") >= calls + 20)
                found["idle_20_slots_mib"] = settled(twenty.pid, idle)
    return found


def first_claim(
    worker: Path, env: dict[str, str], folder: Path, db: psycopg.Connection[tuple[object, ...]], turn: int
) -> float:
    """Milliseconds from the start of the process to the claim; the database has this machine's clock."""
    submit(db, f"first{turn}-", 1, "hello")
    begun = time.time()
    with process([str(worker)], {**env, "TASKGATE_SLOTS": "1"}, folder / f"first{turn}.log"):
        until("its result", lambda: count(db, "completed") >= 1)
    row = db.execute("SELECT extract(epoch FROM started_at)::float8 FROM tasks").fetchone()
    db.execute("DELETE FROM tasks")
    return (float(str(row[0])) - begun) * 1000 if row else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=5, help="seconds without work before memory is read")
    parser.add_argument("--memory-only", action="store_true", help="do not judge the time to the first claim")
    given = parser.parse_args()
    limits = {name: limit for name, limit in LIMITS.items() if not (given.memory_only and name.endswith("_ms"))}
    folder = Path(tempfile.mkdtemp(prefix="taskgate-memory-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        found = measure(folder, given.calls, given.idle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in found.items():
        limit = limits.get(name)
        print(f"{name:26} {value:8.2f}" + (f"   (at most {limit:g})" if limit else ""))
    return int(any(found[name] > limit for name, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
