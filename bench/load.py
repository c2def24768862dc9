"""The load generator wrk: one thread, so many connections, for so many seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

MISSING = "wrk is not installed: `apt-get install wrk` on Debian and Ubuntu, `brew install wrk` on macOS."
DONE = """
done = function(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\\nRESULT {"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "failed": %d}\\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second, and latencies in milliseconds."""

    rate: float
    p50: float
    p99: float


def post(body: str) -> str:
    """A script that posts the same JSON again and again."""
    return f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = [==[{body}]==]\n"


def get(paths: list[str]) -> str:
    """A script that gets these in turn."""
    listed = ", ".join(f"wrk.format('GET', '{path}')" for path in paths)
    return f"""
local requests, n = {{}}, 0
init = function(args) requests = {{ {listed} }} end
request = function() n = n % #requests + 1; return requests[n] end
"""


def run(url: str, script: str, connections: int, seconds: float) -> Load:
    """Raises SystemExit when wrk is missing, RuntimeError when a request was not answered with 2xx."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise SystemExit(MISSING)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        Path(file.name).write_text(script + DONE)
        command = [wrk, "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "10s", "-s", file.name, url]
        done = subprocess.run(command, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if done.returncode or line is None:
        raise RuntimeError(f"wrk ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    found = json.loads(line.removeprefix("RESULT "))
    if found["failed"] or not found["requests"]:
        raise RuntimeError(f"{url}: {found['failed']} of {found['requests']} requests failed:\n{done.stdout}")
    return Load(found["requests"] / found["microseconds"] * 1e6, found["p50"] / 1000, found["p99"] / 1000)
