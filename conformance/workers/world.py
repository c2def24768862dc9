"""Where a case takes place: a database, a provider, a host of images, a proxy, and worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from conformance.workers.cases import Case
from conformance.workers.fleet import Process, environment
from conformance.workers.images import ImageHost
from conformance.workers.proxy import Proxy
from conformance.workers.store import Store
from taskgate.local.fake_provider import FakeProvider
from taskgate.local.ports import free_port
from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from taskgate.settings import Settings

DEFAULTS: dict[str, str | int | float] = {
    "TASKGATE_SLOTS": 4,
    "TASKGATE_LEASE_SECONDS": 10,
    "TASKGATE_TIMEOUT_SECONDS": 60,
    "TASKGATE_GRACE_SECONDS": 20,
    "TASKGATE_POLL_SECONDS": 2,
    "TASKGATE_LLM_MODEL": "model-of-the-worker",
    "TASKGATE_LOG_FORMAT": "json",
    "OPENAI_API_KEY": "key-of-the-worker",
    "GEMINI_API_KEY": "key-of-the-worker",
    "TASKGATE_VEO_POLL_SECONDS": 0.2,
}
QUICK = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "shared_buffers": "64MB"}
SAFE = {"max_connections": "50", "shared_buffers": "32MB"}
"""With fsync on, for what is restarted."""


def make_folder() -> Path:
    """A folder that PostgreSQL's own user can reach, also when root runs this."""
    folder = Path(tempfile.mkdtemp(prefix="taskgate-conformance-", dir="/tmp"))
    folder.chmod(0o711)
    return folder


class Databases:
    """Fresh migrated databases on one server: an embedded one, or that of `dsn` (whose role may create them)."""

    def __init__(self, dsn: str | None = None, *, safe: bool = False) -> None:
        self._dsn, self._settings = dsn, SAFE if safe else QUICK
        self._template = f"conformance_template_{uuid.uuid4().hex[:12]}"
        self._folder: Path | None = None
        self.server: EmbeddedPostgres | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        if self._dsn is None:
            self._folder = make_folder()
            self.server = EmbeddedPostgres(self._folder, port=0, settings=self._settings)
            await asyncio.to_thread(self.server.start)
            self._dsn = self.server.dsn
        await self._run(f"CREATE DATABASE {self._template}")
        url = self.url(self._template)
        await asyncio.to_thread(lambda: migrate(url, configured=Settings(database_url=url).fleet_values()))

    async def create(self) -> str:
        """The URL of a new database."""
        name = f"conformance_{uuid.uuid4().hex}"
        async with self._lock:
            await self._run(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):  # then sessions tell whether claim was called
            await self._run(f"ALTER DATABASE {name} SET track_functions = 'pl'")
        return self.url(name)

    async def drop(self, url: str) -> None:
        await self._run(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)")

    async def stop(self) -> None:
        if self.server is not None:
            await asyncio.to_thread(self.server.stop, "immediate")
        elif self._dsn is not None:
            await self.drop(self.url(self._template))
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def url(self, name: str) -> str:
        assert self._dsn is not None
        parts = urlsplit(self._dsn)
        return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))

    async def _run(self, statement: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


class World:
    """Everything that one case has to itself."""

    def __init__(self, case: Case, command: str, databases: Databases, folder: Path) -> None:
        self.case, self.command, self.databases = case, command, databases
        self.url = ""
        self.store: Store
        self.provider = FakeProvider()
        self.images = ImageHost()
        self.image_url = ""
        self.proxy: Proxy | None = None
        self.processes: dict[str, Process] = {}
        self.port = free_port()
        """What `${port}` in a setting becomes."""
        self._worker_url = ""
        self._folder = folder

    def start_worker(self, settings: dict[str, str | int | float] | None = None, command: str | None = None) -> Process:
        """One more process: w1, w2, … Its settings are the suite's, the case's and these."""
        name = f"w{len(self.processes) + 1}"
        values = {
            **DEFAULTS,
            "DATABASE_URL": self._worker_url,
            "OPENAI_BASE_URL": self.provider.url + "/v1",
            "GEMINI_BASE_URL": self.provider.url,
            **self.case.settings,
            **(settings or {}),
        }
        for setting, content in self.case.files.items():
            file = self._folder / f"{setting}.secret"
            file.write_text(content.replace("${database}", self._worker_url))
            values.pop(setting, None)
            values[f"{setting}_FILE"] = str(file)
        values = {
            key: str(value)
            .replace("${port}", str(self.port))
            .replace("${provider}", self.provider.url)
            .replace("${provider_host}", self.provider.url.removeprefix("http://"))
            for key, value in values.items()
        }
        process = Process(name, command or self.command, environment(values), self._folder / f"{name}.log")
        self.processes[name] = process
        return process

    async def open(self) -> None:
        self.url = self._worker_url = await self.databases.create()
        schema = str(self.case.settings.get("TASKGATE_SCHEMA", "public"))
        if schema != "public":
            await asyncio.to_thread(migrate, self.url, schema=schema)
        self.store = await Store.open(self.url, schema)
        await self.provider.start()
        self.image_url = await self.images.start()
        if self.case.proxy:
            parts = urlsplit(self.url)
            self.proxy = Proxy(parts.hostname or "127.0.0.1", parts.port or 5432)
            port = await self.proxy.start()
            login = parts.netloc.rpartition("@")[0]
            self._worker_url = urlunsplit((parts.scheme, f"{login}@127.0.0.1:{port}", parts.path, parts.query, ""))

    async def close(self) -> None:
        for process in self.processes.values():
            await process.end()
        if self.proxy is not None:
            await self.proxy.stop()
        await self.provider.stop()
        await self.images.stop()
        if hasattr(self, "store"):
            await self.store.close()
        if self.url:
            await self.databases.drop(self.url)


@contextlib.asynccontextmanager
async def world(case: Case, command: str, databases: Databases) -> AsyncIterator[World]:
    """A world for one case, with a server of its own if the case restarts it."""
    folder = Path(tempfile.mkdtemp(prefix="taskgate-conformance-logs-"))
    own = Databases(safe=True) if case.own_postgres else None
    try:
        if own is not None:
            await own.start()
        here = World(case, command, own or databases, folder)
        try:
            await here.open()
            yield here
        finally:
            await here.close()
    finally:
        if own is not None:
            await own.stop()
        shutil.rmtree(folder, ignore_errors=True)
