"""One database connection that comes back: opened when first needed, dropped on trouble, one call at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from taskgate.protocol.connect import DATABASE_ERRORS, Database, connect
from taskgate.upkeep import DatabaseState

TROUBLE = (
    *DATABASE_ERRORS,
    asyncpg.OperatorInterventionError,  # shut down, cancelled, starting up
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.ObjectNotInPrerequisiteStateError,  # lock_timeout, recovery
    asyncpg.ReadOnlySQLTransactionError,  # connected to a standby, after a failover
)
"""What says "try the same call again later"; whether it took effect is not known."""


class CannotConnect(ConnectionError):
    """There is no connection to be had, so the call was not even sent."""


class Link:
    """Looks like an asyncpg connection to `Calls`. Every call may raise one of TROUBLE; the next one reconnects.

    `timeout` bounds each call in seconds: a peer that vanished without a word must not hold the caller for ever.
    `lock_timeout` makes it give up (LockNotAvailableError) where somebody else holds a row for so long.
    `on_connect` runs on each new connection before it is used, for example to check the schema version.
    """

    def __init__(
        self,
        database: Database,
        application_name: str,
        *,
        timeout: float,
        state: DatabaseState,
        on_connect: Callable[[asyncpg.Connection[Any]], Awaitable[None]] | None = None,
        lock_timeout: float | None = None,
    ) -> None:
        self._database = database
        self._name = application_name
        self._timeout = timeout
        self._state = state
        state.url = state.url or database.url
        self._on_connect = on_connect
        self._lock_timeout = lock_timeout
        self._connection: asyncpg.Connection[Any] | None = None
        self._opened = 0
        self._lock = asyncio.Lock()
        self._lost = False

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        rows: list[Any] = await self._call("fetch", query, args, timeout)
        return rows

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._call("fetchrow", query, args, timeout)

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._call("fetchval", query, args, timeout)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._call("execute", query, args, timeout)

    async def _call(self, method: str, query: str, args: tuple[Any, ...], timeout: float | None) -> Any:
        async with self._lock:
            connection = await self.connected()
            try:
                value = await getattr(connection, method)(query, *args, timeout=timeout or self._timeout)
            except (*TROUBLE, asyncio.CancelledError) as error:
                # also when cancelled: asyncpg would wait for the answer before the connection can be used again
                self.drop()
                self._note_lost(error)
                raise
            self._note_back()
            return value

    async def connected(self) -> asyncpg.Connection[Any]:
        """The connection, opened if need be. Raises CannotConnect, or what `on_connect` raises."""
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        try:
            connection = await connect(
                self._database, self._name, command_timeout=self._timeout, lock_timeout=self._lock_timeout
            )
        except (*TROUBLE, asyncpg.PostgresError, ValueError) as error:
            # any refusal: a password that is being rotated or a database that is being created heals as well
            self._lost = True
            self._state.lost(error)
            raise CannotConnect(str(error)) from error
        try:
            if self._on_connect is not None:
                await self._on_connect(connection)
        except BaseException as error:
            connection.terminate()
            self._note_lost(error)
            raise
        self._connection = connection
        self._opened += 1
        return connection

    @property
    def number(self) -> int | None:
        """Which connection this is, counted from 1; None while none is open."""
        return None if self._connection is None or self._connection.is_closed() else self._opened

    def drop(self) -> None:
        """Close at once, without a word to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=1.0)
            except (*TROUBLE, asyncio.CancelledError):
                connection.terminate()

    def _note_lost(self, error: BaseException) -> None:
        # a deadlock or a lock timeout says nothing about the database's health
        if isinstance(error, (*DATABASE_ERRORS, asyncpg.ReadOnlySQLTransactionError, asyncpg.CannotConnectNowError)):
            self._lost = True
            self._state.lost(error)

    def _note_back(self) -> None:
        if self._lost:
            self._lost = False
            self._state.back()


class Backoff:
    """Delays that double from `first` to `most` seconds, each taken at random from its upper half."""

    def __init__(self, first: float, most: float) -> None:
        self._first, self._most, self._next = first, most, first

    def reset(self) -> None:
        self._next = self._first

    def next(self) -> float:
        delay = self._next
        self._next = min(self._most, delay * 2)
        return delay * random.uniform(0.5, 1.0)
