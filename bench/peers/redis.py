"""A Redis for the peers that need one: as durable as PostgreSQL is (every write synced before it is answered)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from taskgate.local.ports import free_port
from taskgate.local.process import ChildProcess


@contextmanager
def redis_server(wanted: bool) -> Iterator[str]:
    """Its URL; empty when none is wanted. Raises RuntimeError when it does not start."""
    if not wanted:
        yield ""
        return
    folder = tempfile.mkdtemp(prefix="taskgate-redis-")
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", ""]
    server = ChildProcess(
        ["redis-server", *options, "--appendonly", "yes", "--appendfsync", "always"], env={}, output=subprocess.DEVNULL
    )
    try:
        _await(port, server)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.stop(10.0)
        shutil.rmtree(folder, ignore_errors=True)


def _await(port: int, server: ChildProcess) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("redis-server did not start")
