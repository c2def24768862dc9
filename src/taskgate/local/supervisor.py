"""`taskgate up`: PostgreSQL, the schema, a model, the API and workers on this machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Literal
from urllib.parse import urlsplit

from pydantic import ValidationError

from taskgate.local import state
from taskgate.local.account import LocalError, data_folder
from taskgate.local.feed import Feed, count_running
from taskgate.local.folder import FolderLock, end_leftovers
from taskgate.local.goworker import go_worker
from taskgate.local.ports import KeptPort, can_bind, free_port
from taskgate.local.postgres import EmbeddedPostgres
from taskgate.local.provider import Provider, choose, wait_answering, without_proxy_for_loopback
from taskgate.local.service import Service
from taskgate.local.terminal import say, stopping, welcome
from taskgate.protocol.connect import Database
from taskgate.protocol.migrate import MigrationError, migrate
from taskgate.settings import Settings
from taskgate.upstreams_file import BadUpstreams, upstreams_json

WATCH_SECONDS = 0.2
PORTS_TRIED = 100
POSTGRES_SETTINGS = {"max_connections": "200"}


@dataclass(frozen=True)
class UpOptions:
    """What `taskgate up` was asked for."""

    port: int | None = None
    """The API's port; None: the setting's, or the next free one."""
    workers: int = 1
    """How many worker processes."""
    worker: Literal["python", "go"] = "python"
    data: Path | None = None
    """Where data is kept; None: the platform's place."""
    fake_provider: bool = False
    host: str | None = None


def up(options: UpOptions) -> int:
    """Runs everything until SIGINT or SIGTERM; answers the exit code. Call it from the main thread."""
    return Supervisor(options).run()


class Supervisor:
    def __init__(self, options: UpOptions) -> None:
        self._options = options
        self._stop_asked = threading.Event()
        self._postgres: EmbeddedPostgres | None = None
        self._postgres_again_at = 0.0
        self._provider: Provider | None = None
        self._services: list[Service] = []
        self._feed: Feed | None = None
        self._lock: FolderLock | None = None
        self._grace = 30.0

    def run(self) -> int:
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            self._start()
            while not self._stop_asked.wait(WATCH_SECONDS):
                self._watch()
        except (LocalError, MigrationError) as error:
            print(f"taskgate up: {error}", file=sys.stderr, flush=True)
            return 1
        except ValidationError as error:
            wrong = "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            print(f"taskgate up: a setting is wrong.\n{wrong}", file=sys.stderr, flush=True)
            return 1
        finally:
            self._stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._stop_asked.is_set():
            self._stop_asked.set()
            if self._feed is None:  # else _stop says more
                with contextlib.suppress(OSError):
                    os.write(1, b"\nStopping (once more: at once) ...\n")  # print() is not reentrant
            return
        for service in self._all_services():
            if service.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(service.pid, signal.SIGKILL)  # no Popen here: we may be inside one of its locks
        os._exit(128 + number)  # PostgreSQL's guard sees us gone and ends it in order

    def _all_services(self) -> list[Service]:
        provider = self._provider.service if self._provider is not None else None
        return [*self._services, *([provider] if provider is not None else [])]

    def _start(self) -> None:
        cancelled = self._stop_asked.is_set
        options, settings = self._options, Settings()
        self._grace = settings.grace_seconds
        wanted = options.data or state.default_data_dir()
        data = data_folder(wanted)
        if options.data is not None and data != Path(os.path.abspath(options.data.expanduser())):
            say(f"{options.data} is out of reach for the user who runs PostgreSQL here; using {data}")
        self._lock = FolderLock(data)
        end_leftovers(data, say)
        logs = data / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        host, port = self._address(settings)

        dsn = self._database_url(settings, data)
        migrate(
            dsn,
            schema=settings.schema_name,
            configured=settings.fleet_values(),
            upstreams=_upstreams(settings),
            say=lambda line: say(line) if "→" in line else None,
        )
        if cancelled():
            return

        environment = without_proxy_for_loopback()
        environment.pop("DATABASE_URL_FILE", None)
        environment |= {
            "DATABASE_URL": dsn,
            "TASKGATE_HOST": host,
            "TASKGATE_PORT": str(port),
            "TASKGATE_LOG_FORMAT": "json",  # we read it; what matters is shown, all of it is in the log files
            "PYTHONUNBUFFERED": "1",
        }
        provider = choose(settings, options.fake_provider, environment, logs, say, cancelled)
        self._provider = provider
        environment |= provider.env
        if cancelled():
            return
        worker = [sys.executable, "-m", "taskgate.worker"]
        if options.worker == "go":
            program = go_worker(data, environment, say, cancelled)
            if program is None:
                return
            worker = [str(program)]

        api = Service("api", [sys.executable, "-m", "taskgate.api"], environment, logs, say)
        self._run_service(api)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        local_url = url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
        if not wait_answering(api, local_url, "/readyz", cancelled):
            return
        names = ["worker"] if options.workers == 1 else [f"worker {n}" for n in range(1, options.workers + 1)]
        for name in names:
            self._run_service(Service(name, worker, environment, logs, say))
        self._state = state.State(
            pid=os.getpid(),
            started=state.process_started(os.getpid()) or "",
            url=local_url,
            dsn=dsn,
            data=str(data),
            model=provider.name,
            model_settings=provider.env,
        )
        self._write_state()
        self._database = Database(dsn, settings.schema_name)
        self._feed = Feed(self._database, say)
        self._feed.start()
        count = f"{options.workers} {options.worker} worker{'s' if options.workers != 1 else ''}"
        print(welcome(local_url, provider.name, count, bool(settings.api_keys), logs), flush=True)

    def _database_url(self, settings: Settings, data: Path) -> str:
        """Of the database that the settings name, or of our own, which is started."""
        if settings.database_url:
            say(f"database: DATABASE_URL ({urlsplit(settings.database_url).hostname or 'local socket'})")
            return settings.database_url
        remembered = KeptPort(data / "postgres.port")
        self._postgres = EmbeddedPostgres(
            data / "postgres", port=remembered.free_again(), settings=POSTGRES_SETTINGS
        ).start()
        remembered.keep(self._postgres.port)
        dsn = self._postgres.create_database("taskgate")
        say(f"PostgreSQL runs on port {self._postgres.port}, its data is in {data}")
        return dsn

    def _address(self, settings: Settings) -> tuple[str, int]:
        host = self._options.host or settings.host
        asked = self._options.port
        if asked is None and "port" in settings.model_fields_set:
            asked = settings.port
        if asked == 0:
            return host, free_port()
        if asked is not None:
            if not can_bind(host, asked):
                raise LocalError(f"Port {asked} on {host} is taken or not ours to use: free it, or ask for another.")
            return host, asked
        for port in range(settings.port, settings.port + PORTS_TRIED):
            if can_bind(host, port):
                if port != settings.port:
                    say(f"port {settings.port} is taken; using {port}")
                return host, port
        raise LocalError(f"No free port on {host} from {settings.port} on: name one with --port.")

    def _run_service(self, service: Service) -> None:
        try:
            service.start()
        except OSError as error:
            raise LocalError(f"{service.name} cannot be started: {error}") from error
        self._services.append(service)

    def _write_state(self) -> None:
        children = {
            service.name: (service.pid, state.process_started(service.pid) or "")
            for service in self._all_services()
            if service.pid is not None
        }
        self._state = replace(self._state, children=children)
        state.write(self._state)

    def _watch(self) -> None:
        postgres = self._postgres
        if postgres is not None and not postgres.running and time.monotonic() >= self._postgres_again_at:
            say("PostgreSQL ended; starting it again")
            try:
                postgres.restart()
                say("PostgreSQL runs again")
            except LocalError as error:
                say(str(error))
                self._postgres_again_at = time.monotonic() + 10
        started = [service for service in self._all_services() if service.watch()]
        if started:
            self._write_state()

    def _stop(self) -> None:
        workers, others = self._services[1:], self._services[:1]
        provider = self._provider.service if self._provider is not None else None
        for service in workers:
            service.ask_to_stop()
        if self._feed is not None:
            running = count_running(self._database) if self._postgres is not None else None  # else others' as well
            with contextlib.suppress(OSError):
                print(f"\n{stopping(running, self._grace)}", flush=True)
            self._feed.stop()
        self._await_all(workers, self._grace + 10)  # a worker drains, and then gives back what is left
        for service in (rest := [*others, *([provider] if provider is not None else [])]):
            service.ask_to_stop()
        self._await_all(rest, 15)
        if self._postgres is not None:
            self._postgres.stop()
        if self._lock is not None:
            state.clear(self._lock.data)
            self._lock.release()

    def _await_all(self, services: list[Service], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for service in services:
            service.wait_stopped(deadline)


def _upstreams(settings: Settings) -> str | None:
    """The upstreams of TASKGATE_UPSTREAMS_FILE for the database. Raises LocalError."""
    if not settings.upstreams_file:
        return None
    try:
        return upstreams_json(settings.upstreams_file)
    except BadUpstreams as error:
        raise LocalError(str(error)) from None
