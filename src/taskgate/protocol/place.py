"""Where a database URL leads, in words that may be shown: never the password."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """As in a connection string: several hosts and their ports are separated by commas."""

    host: str
    port: str
    database: str
    user: str

    def is_where(self, other: DatabasePlace) -> bool:
        """Whether both name the same database, whoever logs in. One host under two names counts as two."""
        return self._target() == other._target()

    def _target(self) -> tuple[list[str], str, str]:
        return ["loopback" if host in LOOPBACK else host for host in self.host.split(",")], self.port, self.database


def database_place(url: str) -> DatabasePlace:
    """What a postgresql:// URL and, for what it leaves out, the variables PGHOST, PGPORT, PGUSER, PGDATABASE say.

    Raises nothing: what cannot be read is left empty.
    """
    try:
        parts = urlsplit(url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        return DatabasePlace("", "", "", "")
    login, _, addresses = parts.netloc.rpartition("@")
    hosts, ports = [], []
    for address in filter(None, addresses.split(",")):
        bracketed, closed, rest = address.rpartition("]")  # [::1]:5432
        host, _, port = (bracketed[1:], "", rest.removeprefix(":")) if closed else address.partition(":")
        hosts.append(unquote(host))
        ports.append(port)
    port = given.get("port") or os.environ.get("PGPORT") or "5432"
    user = unquote(login.partition(":")[0]) or given.get("user") or os.environ.get("PGUSER") or _this_user()
    database = unquote(parts.path.strip("/")) or given.get("dbname") or given.get("database")
    return DatabasePlace(
        host=",".join(hosts) or given.get("host") or os.environ.get("PGHOST") or "localhost",
        port=",".join(each or port for each in ports) or port,
        database=database or os.environ.get("PGDATABASE") or user,
        user=user,
    )


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""
