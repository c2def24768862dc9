"""Connections as the protocol wants them: right search path, no JIT, dead peers noticed."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import asyncpg

from taskgate.protocol.calls import server_settings

CONNECT_SECONDS = 10.0
DATABASE_ERRORS = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.CannotConnectNowError,
                   asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, asyncpg.TooManyConnectionsError,
                   asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError,
                   asyncpg.IdleInTransactionSessionTimeoutError, asyncpg.InternalClientError,
                   OSError, TimeoutError)  # fmt: skip
"""What says that the database, not the call, is the trouble: try again later. (OSError covers refused and reset;
InternalClientError is what asyncpg says when a connection went away under a call. A login that is refused, and a
database that is not there yet, heal as well: a password that is being rotated.)"""

ROW_ERRORS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
"""What says that a row, not the database, is the trouble."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where the tasks are: a postgresql:// URL, the table's schema, whether a transaction-mode pooler is between."""

    url: str
    schema: str = "public"
    pooler: bool = False


def _options(database: Database, application_name: str, lock_timeout: float | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "dsn": database.url,
        "timeout": CONNECT_SECONDS,
        "server_settings": server_settings(database.schema, application_name),
    }
    if lock_timeout is not None:
        options["server_settings"]["lock_timeout"] = f"{lock_timeout * 1000:.0f}ms"
    if database.pooler:
        options["statement_cache_size"] = 0  # prepared statements do not survive a transaction-mode pooler
    return options


async def connect(
    database: Database,
    application_name: str,
    *,
    command_timeout: float | None = None,
    lock_timeout: float | None = None,
) -> asyncpg.Connection[Any]:
    """One connection; timeouts in seconds. Raises one of DATABASE_ERRORS when it cannot be had."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(
        **_options(database, application_name, lock_timeout), command_timeout=command_timeout
    )
    _notice_dead_peer(connection)
    return connection


def pool(
    database: Database, application_name: str, *, size: int, command_timeout: float | None = None
) -> asyncpg.Pool[Any]:
    """A pool that opens connections when first needed, so that a program starts while the database is down."""
    return asyncpg.create_pool(
        **_options(database, application_name),
        min_size=0,
        max_size=size,
        command_timeout=command_timeout,
        max_inactive_connection_lifetime=300,
        init=_notice_dead_peer_async,
        reset=_nothing_to_reset,
    )


async def _nothing_to_reset(_connection: asyncpg.Connection[Any]) -> None:
    """Our calls leave no session state behind, and the default reset would cost every call a second round trip."""


async def _notice_dead_peer_async(connection: asyncpg.Connection[Any]) -> None:
    _notice_dead_peer(connection)


def _notice_dead_peer(connection: asyncpg.Connection[Any]) -> None:
    """TCP keepalive and a bound on unacknowledged data: a peer that vanished without a reset is noticed."""
    transport = getattr(connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
