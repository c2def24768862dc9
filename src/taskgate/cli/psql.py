"""`taskgate psql`: a SQL prompt on the tasks, with the right database and search path."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from taskgate.cli.errors import CliError
from taskgate.cli.places import database_place, load_settings


def psql(
    context: typer.Context,
    print_url: Annotated[bool, typer.Option("--print-url", help="Only print the URL, with its password.")] = False,
) -> None:
    """Open psql on the database of the tasks; further arguments go to psql: taskgate psql -c "SELECT …"."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from taskgate.protocol.version import function_schema

    database = database_place(load_settings())
    if print_url:
        typer.echo(database.url)
        return
    program = _program()
    parts = conninfo_to_dict(database.url)
    environment = {**os.environ, "PGAPPNAME": "taskgate psql"}
    password = parts.pop("password", None)
    if password is not None:
        environment["PGPASSWORD"] = str(password)  # not on the command line, where other users could read it
    if not database.pooler:
        path = f"-c search_path={function_schema(database.schema)},{database.schema}"
        environment["PGOPTIONS"] = f"{environment.get('PGOPTIONS', '')} {path}".strip()
    sys.stdout.flush()
    os.execve(program, [program, make_conninfo("", **parts), *context.args], environment)


def _program() -> str:
    """psql of PATH, else the one among the embedded PostgreSQL's programs."""
    found = shutil.which("psql")
    if found is not None:
        return found
    from taskgate.local.account import LocalError
    from taskgate.local.binaries import wheel_prefix

    try:
        embedded: Path | None = wheel_prefix() / "bin" / "psql"
    except LocalError:
        embedded = None
    if embedded is None or not embedded.exists():
        raise CliError(
            "psql is not installed",
            code="no_psql",
            remedy="Install PostgreSQL's client (Debian: postgresql-client), or pip install 'taskgate[local]'.",
        )
    return str(embedded)
