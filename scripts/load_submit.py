#!/usr/bin/env python3
"""Submits many tasks at once and tells how fast the API took them.

    python scripts/load_submit.py --total 1000 --concurrency 100 --docker-stats --follow

With --follow it goes on until the queue is empty and tells the highest number that ran at once, against the limit.
Exit code 1 when a submission failed, or more ran than the limit allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

TIMEOUT_SECONDS = 60.0
FOLLOW_SECONDS = 0.1


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time: light, so that the client is not what is measured."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Status and body. Raises ConnectionError, TimeoutError."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionError("connection closed")
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await asyncio.wait_for(self._answer, TIMEOUT_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(str(exc) if exc else "connection closed"))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status, keep = self._parser.get_status_code(), self._parser.should_keep_alive()
        body = bytes(self._body)
        self._reset()
        if not keep and self.transport is not None:
            self.transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if self.transport is not None:
            self.transport.close()


@dataclass
class Target:
    """The API, and the requests it is sent."""

    url: str
    api_key: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SystemExit(f"--url: {self.url!r} is no http:// or https:// URL")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/")
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        self._headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: load_submit\r\n{key}"

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self._host, self._port, ssl=self._tls
        )
        return connection

    def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._headers}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def get(self, path: str) -> bytes:
        return f"GET {self._base}{path} HTTP/1.1\r\n{self._headers}\r\n".encode()


@dataclass
class Tally:
    """What came of the submissions. Latencies are seconds."""

    latencies: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return self.failures.total()

    def lines(self, total: int, elapsed: float) -> list[str]:
        ok = len(self.latencies)
        lines = [
            f"submitted={ok + self.failed}/{total}",
            f"ok={ok}",
            f"failed={self.failed}",
            f"elapsed={elapsed:.2f}s",
            f"avg_submit_rate={ok / elapsed:.1f}/s",
        ]
        if ok:
            ranked = sorted(self.latencies)
            values = {"min": ranked[0]}
            values |= {f"p{share}": ranked[math.ceil(ok * share / 100) - 1] for share in (50, 95, 99)}
            values["max"] = ranked[-1]
            lines.append("latency_seconds " + " ".join(f"{name}={value:.3f}" for name, value in values.items()))
        return lines


async def submit_all(target: Target, options: argparse.Namespace, bar: Progress) -> tuple[Tally, float]:
    """Submits everything over `concurrency` connections; the tally, and how long it took."""
    tally = Tally()
    row = bar.add_task("submitting", total=options.total)
    path = "/tasks" if options.type == "llm" else f"/tasks/{options.type}"
    numbers = iter(range(options.total))

    async def lane(connection: Connection) -> None:
        for number in numbers:
            request = target.post(path, json.dumps({"prompt": f"{options.prompt} {number}"}).encode())
            begun = time.perf_counter()
            try:
                status, body = await connection.send(request)
            except (OSError, TimeoutError) as error:
                tally.failures[f"{type(error).__name__}: {error}"] += 1
                try:
                    connection = await target.connect()
                except OSError as again:  # the rest of this lane is for the others
                    tally.failures[f"cannot connect: {again}"] += 0
                    return
            else:
                if status in (200, 202) and b'"task_id"' in body:
                    tally.latencies.append(time.perf_counter() - begun)
                else:
                    tally.failures[f"HTTP {status}: {body[:200].decode(errors='replace')}"] += 1
            bar.advance(row)
        if connection.transport is not None:
            connection.transport.close()

    connections = await asyncio.gather(*(target.connect() for _ in range(min(options.concurrency, options.total))))
    begun = time.perf_counter()
    await asyncio.gather(*(lane(connection) for connection in connections))
    elapsed = time.perf_counter() - begun
    unsent = options.total - len(tally.latencies) - tally.failed
    if unsent:
        tally.failures["not sent: no connection was left"] += unsent
    return tally, elapsed


async def follow(target: Target, bar: Progress, submitted: asyncio.Event) -> tuple[int, int, bool]:
    """Watches until all is submitted and the queue is empty: the highest `running` seen, the limit, if it was kept."""
    connection = await target.connect()
    row = bar.add_task("running", total=None)
    highest, limits, kept = 0, 0, True
    lowered_from: int | None = None
    before: int | None = None
    while True:
        submitted_before = submitted.is_set()  # what we read next is of a time after it
        status, body = await connection.send(target.get("/stats"))
        if status != 200:
            raise ConnectionError(f"GET /stats answered HTTP {status}: {body[:200].decode(errors='replace')}")
        stats = json.loads(body)
        limit, running, pending = int(stats["limit"]), int(stats["running"]), int(stats["pending"])
        if before is not None and limit < before:
            lowered_from = max(before, lowered_from or 0)  # what runs then may finish
        if running <= limit:
            lowered_from = None
        kept = kept and running <= max(limit, lowered_from or 0)
        before = limit
        highest, limits = max(highest, running), max(limits, limit)
        bar.update(row, description=f"running {running} of {limit}, pending {pending}")
        if submitted_before and running == pending == 0:
            return highest, limits, kept
        await asyncio.sleep(FOLLOW_SECONDS)


async def docker_stats() -> list[str]:
    """One line a container. Says why when docker cannot tell."""
    try:
        process = await asyncio.create_subprocess_exec(
            "docker", "stats", "--no-stream", "--format", "{{json .}}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return [f"docker_stats unavailable: {error}"]
    output, complaint = await process.communicate()
    if process.returncode:
        return [f"docker_stats unavailable: {complaint.decode(errors='replace').strip()}"]
    rows = [json.loads(line) for line in output.splitlines() if line.strip()]
    return [
        f"docker name={row['Name']} cpu={row['CPUPerc']} memory={row['MemUsage'].replace(' ', '')} "
        f"block_io={row['BlockIO'].replace(' ', '')}"
        for row in sorted(rows, key=lambda row: row["Name"])
    ] or ["docker_stats no container runs"]


async def run(options: argparse.Namespace) -> int:
    target = Target(options.url, os.environ.get("TASKGATE_API_KEY", ""))
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    during = asyncio.ensure_future(docker_stats()) if options.docker_stats else None
    code = 0
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        submitted = asyncio.Event()
        following = asyncio.ensure_future(follow(target, bar, submitted)) if options.follow else None
        try:
            tally, elapsed = await submit_all(target, options, bar)
            submitted.set()
        except OSError as error:
            if following is not None:
                following.cancel()
            print(f"cannot reach {options.url}: {error}. Start it, or name it with --url.", file=sys.stderr)
            return 4
        print("\n".join(tally.lines(options.total, elapsed)), flush=True)
        for why, count in tally.failures.most_common(5):
            print(f"{count} x {why}", file=sys.stderr)
        code = 1 if tally.failed else 0
        if following is not None:
            begun = time.perf_counter()
            highest, limit, kept = await following
            print(f"drained={time.perf_counter() - begun:.2f}s")
            print(f"highest_running={highest} limit={limit} {'held' if kept else 'EXCEEDED'}")
            code = code if kept else 1
    if during is not None:
        print("\n".join(f"during {line}" for line in await during))
        print("\n".join(f"after {line}" for line in await docker_stats()))
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total", type=int, default=100, help="how many tasks")
    parser.add_argument("--concurrency", type=int, default=50, help="how many at once")
    parser.add_argument("--url", default=os.environ.get("TASKGATE_URL") or "http://127.0.0.1:8000", help="the API")
    parser.add_argument("--type", default="llm", help="the task type")
    parser.add_argument("--prompt", default="load test", help="the prompt; a number is put behind it")
    parser.add_argument("--docker-stats", action="store_true", help="memory, CPU and block IO of each container")
    parser.add_argument("--follow", action="store_true", help="go on until the queue is empty")
    options = parser.parse_args()
    if options.total < 1 or options.concurrency < 1:
        parser.error("--total and --concurrency must be at least 1")
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
