"""`taskgate doctor`: is everything well, and if not, what helps. Exit code 1 when something fails."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from taskgate.cli.checks import OLD_SNAPSHOT_SECONDS, Check, Facts, check_facts
from taskgate.cli.errors import FAILED, OK, CliError
from taskgate.cli.output import clean, console, print_json
from taskgate.cli.places import database_place, load_settings, with_calls, without_password
from taskgate.cli.tasks import JsonOption

if TYPE_CHECKING:
    from taskgate.protocol.calls import Calls
    from taskgate.settings import Settings

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(as_json: JsonOption = False) -> None:
    """Check database, schema, limit, workers, queue, locks, clocks and settings."""
    settings = load_settings()
    checks = [*_database_checks(settings), *_api_check(settings)]
    if as_json:
        print_json({"healthy": all(check.state != "fail" for check in checks), "checks": [asdict(c) for c in checks]})
    else:
        _print(checks)
    raise typer.Exit(FAILED if any(check.state == "fail" for check in checks) else OK)


def _database_checks(settings: Settings) -> list[Check]:
    try:
        place = without_password(database_place(settings).url)
        version = with_calls(_schema_version, check_schema=False)
    except CliError as error:
        return [Check("database", "fail", error.message, error.remedy)]
    checks = [Check("database", "ok", f"{place} answers")]
    from taskgate.protocol.version import SchemaMismatch, check_version

    try:
        check_version(version)
    except SchemaMismatch as error:
        what, _, remedy = str(error).partition(": ")
        return [*checks, Check("schema", "fail", what, f"{remedy[:1].upper()}{remedy[1:]}.")]
    checks.append(Check("schema", "ok", f"version {version}"))
    try:
        facts = with_calls(_gather)
    except CliError as error:
        return [*checks, Check("database", "fail", error.message, error.remedy)]
    return [*checks, *check_facts(facts, settings)]


async def _schema_version(calls: Calls) -> int | None:
    return await calls.schema_version()


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
        workers=await calls.workers(),
        overdue=await calls.overdue(),
        lock=await calls.lock_holder(),
        snapshots=await calls.old_snapshots(OLD_SNAPSHOT_SECONDS),
        skew=theirs - middle,
    )


def _api_check(settings: Settings) -> list[Check]:
    """The API, where we know of one: TASKGATE_URL, or a running `up`."""
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
    except (httpx2.TransportError, ValueError) as error:
        return [Check("api", "fail", f"{url} does not answer: {error}", "Start it: taskgate api")]
    if answer.status_code != 200:
        return [Check("api", "fail", f"{url} is not ready: {answer.text[:300]}", "See the API's log.")]
    return [Check("api", "ok", f"{url} is ready")]


def _print(checks: list[Check]) -> None:
    out = console()
    width = max(len(check.name) for check in checks)
    for check in checks:
        out.print(f"{check.state:<4}", style=STYLES[check.state], end="  ")
        out.print(clean(f"{check.name:<{width}}  {check.message}"), soft_wrap=True)
        if check.remedy and check.state != "ok":
            out.print(clean(f"{'':<6}{'':<{width}}  -> {check.remedy}"), soft_wrap=True)
