"""`taskgate doctor`: is everything well, and if not, what helps. Exit code 1 when something fails."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from taskgate.cli.checks import OLD_SNAPSHOT_SECONDS, Check, Facts, check_facts
from taskgate.cli.errors import FAILED, OK, CliError
from taskgate.cli.output import clean, console, print_json
from taskgate.cli.places import database_place, load_settings, url_remedy, with_calls, without_password
from taskgate.cli.tasks import JsonOption

if TYPE_CHECKING:
    from taskgate.protocol.calls import Calls
    from taskgate.settings import Settings

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(as_json: JsonOption = False) -> None:
    """Check database, schema, limit, workers, queue, locks, clocks and settings."""
    settings = load_settings()
    checks, identity = _database_checks(settings)
    checks += _api_check(settings, identity)
    if as_json:
        print_json({"healthy": all(check.state != "fail" for check in checks), "checks": [asdict(c) for c in checks]})
    else:
        _print(checks)
    raise typer.Exit(FAILED if any(check.state == "fail" for check in checks) else OK)


def _database_checks(settings: Settings) -> tuple[list[Check], str | None]:
    """The checks, and which database it is, where that can be told."""
    try:
        place = without_password(database_place(settings, quiet=True).url)
        version, identity = with_calls(_schema_version, check_schema=False, quiet=True)
    except CliError as error:
        return [Check("database", "fail", error.message, error.remedy)], None
    checks = [Check("database", "ok", f"{place} answers")]
    from taskgate.protocol.version import SchemaMismatch, check_version

    try:
        check_version(version)
    except SchemaMismatch as error:
        what, _, remedy = str(error).partition(": ")
        return [*checks, Check("schema", "fail", what, f"{remedy[:1].upper()}{remedy[1:]}.")], identity
    checks.append(Check("schema", "ok", f"version {version}"))
    try:
        facts = with_calls(_gather, quiet=True)
    except CliError as error:
        return [*checks, Check("database", "fail", error.message, error.remedy)], identity
    return [*checks, *check_facts(facts, settings)], identity


async def _schema_version(calls: Calls) -> tuple[int | None, str | None]:
    return await calls.schema_version(), await calls.identity()


async def _gather(calls: Calls) -> Facts:
    before = datetime.now(UTC)
    theirs = await calls.server_clock()
    middle = before + (datetime.now(UTC) - before) / 2
    return Facts(
        fleet=await calls.settings(),
        stats=await calls.stats(),
        groups=await calls.limits(),
        cooldowns=await calls.cooldowns(),
        by_type=await calls.stats_by_type(),
        due=await calls.due_by_type(),
        workers=await calls.workers(),
        overdue=await calls.overdue(),
        lock=await calls.lock_holder(),
        snapshots=await calls.old_snapshots(OLD_SNAPSHOT_SECONDS),
        skew=theirs - middle,
    )


def _api_check(settings: Settings, identity: str | None) -> list[Check]:
    """The API, where we know of one: TASKGATE_URL, or a running `up`. `identity`: of the database that was checked."""
    from taskgate.local.state import find

    running = None if "url" in settings.model_fields_set else find()
    url = settings.url if "url" in settings.model_fields_set else running.url if running is not None else None
    if url is None:
        return []
    import httpx2

    from taskgate.transport import http_options

    try:
        with httpx2.Client(**http_options(url, settings.api_key), timeout=10) as http:
            answer = http.get("/readyz")
            told = answer.json() if answer.status_code == 200 else {}
    except httpx2.TransportError as error:
        return [Check("api", "fail", f"{url} does not answer: {error}", "Start it, or say where it is: TASKGATE_URL")]
    except json.JSONDecodeError:
        return [Check("api", "fail", f"{url} is no taskgate API", "Set TASKGATE_URL to one's URL.")]
    except ValueError as error:
        return [Check("api", "fail", str(error), url_remedy(url))]
    if answer.status_code != 200:
        return [Check("api", "fail", f"{url} is not ready: {answer.text[:300]}", "See the API's log.")]
    theirs = told.get("database") if isinstance(told, dict) else None
    if identity and theirs and theirs != identity:
        return [_two_databases(settings, url)]
    return [Check("api", "ok", f"{url} is ready")]


def _two_databases(settings: Settings, url: str) -> Check:
    place = without_password(database_place(settings, quiet=True).url)
    return Check(
        "api",
        "fail",
        f"{url} works on another database than the one that was checked, {place}: some commands ask the one, some the "
        "other",
        f"Set DATABASE_URL to that API's database{'' if settings.database_url else ' (it is not set)'}, "
        f"or TASKGATE_URL to this database's API{'' if 'url' in settings.model_fields_set else ' (it is not set)'}.",
    )


def _print(checks: list[Check]) -> None:
    out = console()
    width = max(len(check.name) for check in checks)
    for check in checks:
        out.print(f"{check.state:<4}", style=STYLES[check.state], end="  ")
        out.print(clean(f"{check.name:<{width}}  {check.message}"), soft_wrap=True)
        if check.remedy and check.state != "ok":
            out.print(clean(f"{'':<6}{'':<{width}}  -> {check.remedy}"), soft_wrap=True)
