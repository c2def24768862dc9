"""The commands that run something: up, api, worker, migrate, fake-provider."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from taskgate.cli.errors import FAILED, SCHEMA, UNREACHABLE, CliError
from taskgate.cli.output import emit
from taskgate.cli.places import database_place, join_running_up, load_settings, warn_of_slips
from taskgate.cli.upstreams import upstreams_of

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


class WorkerKind(StrEnum):
    python = "python"
    go = "go"


def up(
    port: Annotated[int | None, typer.Option(help="The API's port; default: 8000, or the next free one.")] = None,
    host: Annotated[str | None, typer.Option(help="The API's address; default: TASKGATE_HOST or 127.0.0.1.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=1000, help="Worker processes.")] = 1,
    worker: Annotated[WorkerKind, typer.Option(help="Which worker.")] = WorkerKind.python,
    data: Annotated[Path | None, typer.Option(help="Folder for the data; default: this platform's place.")] = None,
    fake_provider: Annotated[bool, typer.Option("--fake-provider", help="Answer with a fake model.")] = False,
) -> None:
    """Run everything on this machine: PostgreSQL, API, workers and a model. Ctrl-C stops it."""
    from taskgate.local.supervisor import UpOptions
    from taskgate.local.supervisor import up as run_up

    warn_of_slips()
    options = UpOptions(
        port=port,
        workers=workers,
        worker="go" if worker is WorkerKind.go else "python",
        data=data,
        fake_provider=fake_provider,
        host=host,
    )
    raise typer.Exit(run_up(options))


def api(
    host: Annotated[str | None, typer.Option(help="Address; default: TASKGATE_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; default: TASKGATE_PORT or 8000.")] = None,
) -> None:
    """Run the HTTP API in the foreground."""
    if host is not None:
        os.environ["TASKGATE_HOST"] = host
    if port is not None:
        os.environ["TASKGATE_PORT"] = str(port)
    join_running_up()
    _become("taskgate.api", [])


def worker(
    app: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:NAME]", help="Serve a module's handlers, or one registry or function of it; repeatable."
        ),
    ] = None,
    types: Annotated[str | None, typer.Option(help="Serve these task types only, for example llm,veo.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Tasks at once in this process; default: TASKGATE_SLOTS or 20."),
    ] = None,
) -> None:
    """Run a worker in the foreground: the same as `python -m taskgate.worker`."""
    if slots is not None:
        os.environ["TASKGATE_SLOTS"] = str(slots)
    running = join_running_up()
    if running is not None and not (os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")):
        from taskgate.local.provider import without_proxy_for_loopback

        os.environ.update(without_proxy_for_loopback() | running.model_settings)  # it may take `llm` tasks of the `up`
    arguments = [text for each in app or [] for text in ("--app", each)]
    _become("taskgate.worker", [*arguments, *(["--types", types] if types is not None else [])])


def fake_provider(context: typer.Context) -> None:
    """Run an OpenAI- and Gemini-shaped server for trials and load (its options: `fake-provider -- --help`)."""
    _become("taskgate.local.fake_provider", context.args)


def migrate(
    as_json: Annotated[bool, typer.Option("--json", help="Output for machines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only the result.")] = False,
) -> None:
    """Bring the database to this version's schema. Safe to run twice, and while everything runs."""
    from taskgate.protocol.migrate import MigrationError
    from taskgate.protocol.migrate import migrate as run_migrate

    def say(line: str) -> None:
        if not quiet and not as_json and not line.startswith("function file"):
            typer.echo(line)

    join_running_up(quiet=quiet or as_json)
    settings = load_settings()
    database = database_place(settings)
    upstreams = upstreams_of(settings.upstreams_file) if settings.upstreams_file else None
    try:
        version = run_migrate(
            database.url, schema=database.schema, configured=settings.fleet_values(), upstreams=upstreams, say=say
        )
    except MigrationError as error:
        text = str(error)
        exit_code = UNREACHABLE if text.startswith("cannot reach") else SCHEMA if "schema version" in text else FAILED
        code = {UNREACHABLE: "not_reachable", SCHEMA: "schema_mismatch"}.get(exit_code, "migration_failed")
        raise CliError(text, code=code, exit_code=exit_code) from None
    emit(as_json, {"schema_version": version}, f"the schema is at version {version}")


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Turns this process into another module's: same pid for signals, and none of our imports in its memory.

    `-m` also puts the working directory on the import path, where --app looks for modules.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
