"""An application served by the event loop of the test, where it can be patched."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from tests.waiting import happens


@asynccontextmanager
async def served_here(app: Any, **config: Any) -> AsyncIterator[int]:
    """Its port; `config` is uvicorn's."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", **config))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await happens(lambda: server.started or serving.done())
        assert not serving.done()
        yield listening.getsockname()[1]
        server.should_exit = True
        await serving
