"""/healthz and /metrics of a worker, on TASKGATE_HOST and TASKGATE_WORKER_PORT; nothing listens without that port."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from taskgate.logs import get_logger
from taskgate.upkeep import DatabaseState

if TYPE_CHECKING:
    from taskgate.worker.worker import Worker

log = get_logger("worker")

READ_SECONDS = 5.0
MAX_REQUEST_BYTES = 8192


async def serve_health(worker: Worker, state: DatabaseState) -> None:
    """Serve until cancelled. A port that is taken is reported, and the worker works on without it."""
    if worker.settings.worker_port is None:
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].split(b"?")[0].decode("latin-1")
                status, kind, body = _page(worker, state, path)
                writer.write(
                    f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
                    "connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            pass  # not HTTP, or gone
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(
            answer, worker.settings.host, worker.settings.worker_port, limit=MAX_REQUEST_BYTES
        )
    except OSError as error:
        log.error("health_not_served", port=worker.settings.worker_port, error=str(error))
        return
    async with server:
        port = server.sockets[0].getsockname()[1]
        log.info("health_listening", url=f"http://{worker.settings.host}:{port}")
        await server.serve_forever()


def _page(worker: Worker, state: DatabaseState, path: str) -> tuple[str, str, bytes]:
    if path == "/healthz":
        # a database that is away is no reason to restart the worker
        page = {
            "status": "draining" if worker.draining else "ok",
            "database": "lost" if state.is_lost else "ok",
            "worker_id": worker.worker_id,
            "running": worker.running,
        }
        return "200 OK", "application/json", json.dumps(page).encode()
    if path == "/metrics":
        return "200 OK", "text/plain; version=0.0.4; charset=utf-8", _metrics(worker).encode()
    return "404 Not Found", "text/plain", b"there are /healthz and /metrics\n"


def _metrics(worker: Worker) -> str:
    """Prometheus' text format, https://prometheus.io/docs/instrumenting/exposition_formats/."""
    lines = [
        "# HELP taskgate_worker_slots Tasks that this process runs at once, at most.",
        "# TYPE taskgate_worker_slots gauge",
        f"taskgate_worker_slots {worker.settings.slots}",
        "# HELP taskgate_worker_running Attempts under way, or waiting for their outcome to be written.",
        "# TYPE taskgate_worker_running gauge",
        f"taskgate_worker_running {worker.running}",
        "# HELP taskgate_worker_claimed_total Attempts begun.",
        "# TYPE taskgate_worker_claimed_total counter",
        f"taskgate_worker_claimed_total {worker.claimed}",
        "# HELP taskgate_worker_settled_total Outcomes written, by what became of them.",
        "# TYPE taskgate_worker_settled_total counter",
        *(f'taskgate_worker_settled_total{{outcome="{name}"}} {count}' for name, count in worker.counts.items()),
    ]
    return "\n".join(lines) + "\n"
