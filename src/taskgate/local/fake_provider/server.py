"""Starting and stopping the fake provider, inside a test's process or as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from taskgate.local.fake_provider.app import App
from taskgate.local.fake_provider.behaviour import Rule
from taskgate.local.fake_provider.choose import Chooser
from taskgate.local.fake_provider.http import Connection
from taskgate.local.fake_provider.journal import Journal


@dataclass(slots=True)
class FakeProviderOptions:
    """What can be set at start. Times are seconds."""

    host: str = "127.0.0.1"
    port: int = 0
    latency: float = 0.0
    jitter: float = 0.0
    limit: int | None = None
    """Above so many calls in flight it answers 429."""
    faults: list[Rule] = field(default_factory=list)
    api_key: str = ""
    """Without it in the Authorization header it answers 401; empty takes everybody."""
    log_size: int = 10_000
    seed: int | None = None


class FakeProvider:
    """A fake provider on a socket of this process; `url + "/v1"` is the base URL for clients."""

    def __init__(self, options: FakeProviderOptions | None = None) -> None:
        self.options = options = options or FakeProviderOptions()
        self.chooser = Chooser(
            latency=options.latency,
            jitter=options.jitter,
            limit=options.limit,
            faults=options.faults,
            seed=options.seed,
        )
        self.journal = Journal(options.log_size)
        self._app = App(self.chooser, self.journal, options.api_key)
        self.video, self.tokens = self._app.video, self._app.tokens
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self.url = ""

    async def start(self) -> None:
        """Raises OSError if the port is taken."""
        _raise_file_limit()
        loop = asyncio.get_running_loop()
        options = self.options
        self._server = await loop.create_server(
            lambda: Connection(self._app, self._connections), options.host, options.port, backlog=4096
        )
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and break what is open."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._server.wait_closed()
        self._server = None

    def script(self, key: str, *behaviours: Any) -> None:
        """Prompts that contain `key` meet these behaviours in order, then the usual ones."""
        self.chooser.set_scripts({key: list(behaviours)})

    async def __aenter__(self) -> FakeProvider:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def _serve(options: FakeProviderOptions) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, stopped.set)
    async with FakeProvider(options) as provider:
        print(f"fake provider listening on {provider.url}", flush=True)
        await stopped.wait()


def serve(options: FakeProviderOptions) -> None:
    """Serve until SIGINT or SIGTERM. Raises OSError if the port is taken."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(options))


def _raise_file_limit() -> None:
    """A thousand connections need more files than the usual soft limit of 1,024."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
