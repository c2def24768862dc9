"""Runs the application on uvicorn, in one process, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType

import uvicorn
from pydantic import ValidationError

from taskgate.api.app import Application, create_app
from taskgate.api.schema_watch import schema_refusal
from taskgate.logs import configure, get_logger
from taskgate.setting_names import log_slips
from taskgate.settings import Settings

log = get_logger("api")

EXIT_SETTINGS, EXIT_SCHEMA, EXIT_PORT = 2, 3, 4


class _Server(uvicorn.Server):
    """Says where it listens, and tells the application at once that it stops: held answers must not hold up the end."""

    def __init__(self, config: uvicorn.Config, app: Application) -> None:
        super().__init__(config)
        self._application = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays: a full collection would walk it while everybody waits
        for each in sockets or []:
            host, port = each.getsockname()[:2]
            log.info("api_started", url=_url(each), host=host, port=port)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()  # stopping as told is a success: do not die of the signal in the end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        context = getattr(self._application, "context", None)
        if context is not None:
            asyncio.get_running_loop().call_soon_threadsafe(context.waiter.release)


def run(settings: Settings) -> int:
    """Serve until told to stop; answers the exit code: 2 wrong settings, 3 wrong schema, 4 no such address."""
    configure(settings.log_format, settings.log_level)
    log_slips(log, os.environ)
    try:
        app = create_app(settings)
    except ValueError as error:
        log.error("settings_wrong", error=str(error))
        return EXIT_SETTINGS
    config = uvicorn.Config(
        app,
        http="taskgate.api.deadline:DeadlineProtocol" if find_spec("httptools") else "auto",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.grace_seconds) or 1,
        timeout_keep_alive=65,
        backlog=2048,
        lifespan="on",
        ws="none",
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_serve(app, config, settings))


async def _serve(app: Application, config: uvicorn.Config, settings: Settings) -> int:
    refusal = await schema_refusal(settings)
    if refusal is not None:
        log.error("schema_mismatch", error=refusal)
        return EXIT_SCHEMA
    try:
        listening = _listen(settings.host, settings.port)
    except OSError as error:
        log.error("address_unusable", host=settings.host, port=settings.port, error=str(error))
        return EXIT_PORT
    with listening:
        await _Server(config, app).serve(sockets=[listening])
    log.info("api_stopped")
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _url(listening: socket.socket) -> str:
    """Where this machine reaches it: one cannot go to "all addresses"."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


def main() -> int:
    """The entry point: settings from the environment."""
    try:
        settings = Settings()
    except ValidationError as error:
        configure()
        for each in error.errors(include_url=False, include_input=False):
            log.error("settings_wrong", setting=".".join(map(str, each["loc"])), error=each["msg"])
        return EXIT_SETTINGS
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
