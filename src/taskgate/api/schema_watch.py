"""Whether the database's schema is in this program's range: looked at when starting, and now and then."""

from __future__ import annotations

import asyncio

import asyncpg

from taskgate.api.context import Context
from taskgate.logs import get_logger
from taskgate.protocol.calls import Calls
from taskgate.protocol.connect import DATABASE_ERRORS, connect
from taskgate.protocol.version import SchemaMismatch, check_version
from taskgate.settings import Settings

log = get_logger("api")

SECONDS = 5.0


async def check_schema(context: Context) -> bool:
    """Notes the answer in `schema_trouble`; False if the database could not be asked."""
    try:
        version = await context.calls.schema_version()
    except DATABASE_ERRORS as error:
        context.state.lost(error)
        return False
    except asyncpg.PostgresError as error:
        log.warning("schema_unknown", error=str(error))
        return False
    context.state.back()
    try:
        check_version(version)
    except SchemaMismatch as error:
        if context.schema_trouble is None:
            log.error("schema_mismatch", error=str(error))
        context.schema_trouble = str(error)
    else:
        context.schema_trouble = None
    return True


async def watch_schema(context: Context) -> None:
    """A migration, or its undoing, is noticed without a restart."""
    while True:
        try:
            await check_schema(context)
        except Exception as error:  # the next round may find what this one stumbled over gone
            context.state.unexpected("schema_watch", error)
        await asyncio.sleep(SECONDS)


async def schema_refusal(settings: Settings) -> str | None:
    """Before the start: why this program must not serve that database. None if it may, or cannot be asked yet."""
    try:
        connection = await connect(settings.database, "taskgate api (start)", command_timeout=10)
        try:
            check_version(await Calls(connection, settings.schema_name).schema_version())
        finally:
            await connection.close(timeout=5)
    except SchemaMismatch as error:
        return str(error)
    except (*DATABASE_ERRORS, asyncpg.PostgresError):
        return None
    return None
