"""Where things are: the API for producers' commands, the database for operators'; else a running `taskgate up`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from taskgate.cli.errors import SCHEMA, UNREACHABLE, USAGE, CliError

if TYPE_CHECKING:
    from taskgate.async_client import AsyncClient
    from taskgate.client import Client
    from taskgate.local.state import State
    from taskgate.protocol.calls import Calls
    from taskgate.protocol.connect import Database
    from taskgate.settings import Settings

T = TypeVar("T")


def load_settings() -> Settings:
    """The environment's settings. Raises CliError that names each wrong one."""
    from pydantic import ValidationError

    from taskgate.settings import Settings

    warn_of_slips()
    try:
        return Settings()
    except ValidationError as error:
        wrong = [
            {"pointer": ".".join(str(part) for part in each["loc"]) or "settings", "detail": each["msg"]}
            for each in error.errors(include_input=False, include_url=False)
        ]
        raise CliError(
            "a setting in the environment is wrong", code="settings", exit_code=USAGE, errors=wrong
        ) from None
    except ValueError as error:
        raise CliError(str(error), code="settings", exit_code=USAGE) from None


@cache
def warn_of_slips() -> None:
    """Says on stderr, once a process, which settings look misspelt."""
    from taskgate.setting_names import slip_words, slips

    for name, meant in slips(os.environ):
        print(slip_words(name, meant), file=sys.stderr)


def api_place(url: str | None = None) -> tuple[str, str]:
    """URL and key of the API: an option, TASKGATE_URL, a running `up`, else this machine's port 8000."""
    settings = load_settings()
    if url is None and "url" not in settings.model_fields_set:
        from taskgate.local.state import find

        running = find()
        url = running.url if running is not None else None
        if running is not None and settings.database_url and not same_database(settings.database_url, running.dsn):
            note(
                f"TASKGATE_URL is not set: using the API of the running `taskgate up`, {running.url}, which works on "
                f"{without_password(running.dsn)}, not on the database of DATABASE_URL"
            )
    return url or settings.url, settings.api_key


@cache
def note(line: str) -> None:
    """Says it on stderr, once a process."""
    print(line, file=sys.stderr, flush=True)


def same_database(url: str, other: str) -> bool:
    """Whether two URLs name one database. A host under two names counts as two."""
    from taskgate.protocol.place import database_place

    return database_place(url).is_where(database_place(other))


def client(url: str | None = None) -> Client:
    """A client of the API, to be used with `with`. Raises CliError for a URL that cannot be an API's."""
    from taskgate.client import Client

    place, key = api_place(url)
    try:
        return Client(place, key)
    except ValueError as error:
        raise _wrong_place(place, error) from None


def async_client(url: str | None = None) -> AsyncClient:
    """The same for asyncio, to be used with `async with`."""
    from taskgate.async_client import AsyncClient

    place, key = api_place(url)
    try:
        return AsyncClient(place, key)
    except ValueError as error:
        raise _wrong_place(place, error) from None


def _wrong_place(place: str, error: ValueError) -> CliError:
    return CliError(str(error), code="usage", exit_code=USAGE, remedy=url_remedy(place))


def url_remedy(place: str) -> str:
    """What helps against a URL that cannot be an API's."""
    return f"Set TASKGATE_URL (or --url) to {'its URL' if '://' in place else f'http://{place}'}."


def database_place(settings: Settings, *, quiet: bool = False) -> Database:
    """The database of DATABASE_URL, else of a running `up`. Raises CliError when there is neither.

    Unless `quiet`, it says on stderr when that `up` is not the API that TASKGATE_URL names.
    """
    from taskgate.protocol.connect import Database

    if settings.database_url:
        return settings.database
    from taskgate.local.state import find

    running = find()
    if running is None:
        raise CliError(
            "DATABASE_URL is not set, and no `taskgate up` of this user runs",
            code="no_database",
            exit_code=USAGE,
            remedy="Set DATABASE_URL to the postgresql:// URL of the tasks, or start `taskgate up`.",
        )
    if not quiet and "url" in settings.model_fields_set and not _same_api(settings.url, running.url):
        note(
            f"DATABASE_URL is not set: using that of the running `taskgate up`, {without_password(running.dsn)}; "
            f"TASKGATE_URL names another API, {settings.url}"
        )
    return Database(running.dsn, settings.schema_name)


def _same_api(url: str, other: str) -> bool:
    from taskgate.protocol.place import LOOPBACK

    try:
        places = [urlsplit(each.rstrip("/")) for each in (url, other)]
        first, second = [
            ("loopback" if each.hostname in LOOPBACK else each.hostname, each.port, each.path) for each in places
        ]
    except ValueError:
        return False
    return first == second


def join_running_up(*, quiet: bool = False) -> State | None:
    """Without a DATABASE_URL: puts that of a running `up` into the environment and says so on stderr."""
    if os.environ.get("DATABASE_URL") or os.environ.get("DATABASE_URL_FILE"):
        return None
    from taskgate.local.state import find

    running = find()
    if running is not None:
        os.environ["DATABASE_URL"] = running.dsn
        if not quiet:
            place = without_password(running.dsn)
            print(f"DATABASE_URL is not set: using that of the running `taskgate up`, {place}", file=sys.stderr)
    return running


def without_password(url: str) -> str:
    """A database URL that may be shown."""
    parts = urlsplit(url)
    if not parts.hostname:
        return f"{parts.scheme}://…{parts.path}"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def with_calls(
    work: Callable[[Calls], Awaitable[T]],
    *,
    check_schema: bool = True,
    within: float | None = None,
    quiet: bool = False,
) -> T:
    """Runs `work` on one connection to the database, in `within` seconds in all; `quiet` as in `database_place`.

    Raises CliError for what can be expected to go wrong.
    """
    import asyncpg

    from taskgate.protocol.calls import Calls
    from taskgate.protocol.connect import DATABASE_ERRORS, connect
    from taskgate.protocol.version import SchemaMismatch, check_version

    database = database_place(load_settings(), quiet=quiet)

    async def main() -> T:
        async with asyncio.timeout(within):
            connection = await connect(database, "taskgate cli", command_timeout=60)
            try:
                calls = Calls(connection, database.schema)
                if check_schema:
                    check_version(await calls.schema_version())
                return await work(calls)
            finally:
                await connection.close(timeout=5)

    try:
        return asyncio.run(main())
    except SchemaMismatch as error:
        raise CliError(str(error), code="schema_mismatch", exit_code=SCHEMA) from None
    except DATABASE_ERRORS as error:
        raise unreachable(database, error) from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise CliError(
            f"the database refuses it: {error}", code="not_allowed", remedy="Use the owner's role."
        ) from None
    except asyncpg.PostgresError as error:
        raise CliError(f"the database answered: {error}", code="database_error") from None


def unreachable(database: Database, error: BaseException) -> CliError:
    """The error for a database that is not to be had."""
    why = str(error).strip() or type(error).__name__
    return CliError(
        f"cannot reach the database {without_password(database.url)}: {why}",
        code="not_reachable",
        exit_code=UNREACHABLE,
        remedy="Is PostgreSQL running, and is DATABASE_URL right? `taskgate up` starts one of its own.",
    )
