"""upstreams: where calls go, from a file into the database, over SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.errors import FAILED, USAGE, CliError
from taskgate.cli.output import emit, print_json, print_table
from taskgate.cli.places import with_calls
from taskgate.cli.tasks import JsonOption

if TYPE_CHECKING:
    from taskgate.protocol.calls import Calls

app = typer.Typer(help="Show the upstreams, or make them what a file says.", no_args_is_help=True)


def upstreams_of(path: str | Path, *, allow_empty: bool = False) -> str:
    """The file's upstreams as JSON text. Raises CliError."""
    from taskgate.upstreams_file import BadUpstreams, upstreams_json

    try:
        return upstreams_json(path, allow_empty=allow_empty)
    except BadUpstreams as error:
        several = error.mistakes if len(error.mistakes) > 1 else []
        errors = [{"pointer": place or "(file)", "detail": why} for place, why in several]
        raise CliError(error.summary, code="bad_upstreams", exit_code=USAGE, errors=errors) from None


@app.command("list")
def list_upstreams(as_json: JsonOption = False) -> None:
    """List the upstreams, and how many tasks of each run at once at most now."""

    async def work(calls: Calls) -> tuple[list[Any], list[Any]]:
        return await calls.upstreams(), await calls.limits()

    rows, groups = with_calls(work)
    limits = {row["name"]: row["max_concurrent"] for row in groups if row["scope"] == "upstream"}

    def in_force(name: str) -> int | None:
        return limits[name] if name in limits else limits.get("*")

    if as_json:
        print_json([dict(row) | {"limit": in_force(row["name"])} for row in rows])
        return
    print_table(
        ("upstream", "api", "models", "key", "at once", "place"),
        [
            [
                row["name"] + ("" if row["enabled"] else " (off)"),
                row["api"],
                " ".join(row["models"]),
                row["key_env"] or row["key_file"],
                _at_once(in_force(row["name"]), row["max_concurrent"]),
                row["base_url"] or " ".join(filter(None, [row["project"], row["location"]])),
            ]
            for row in rows
        ],
        right=("at once",),
    )


def _at_once(limit: int | None, of_file: int | None) -> str:
    shown = "" if limit is None else str(limit)
    return shown if of_file in (None, limit) else f"{shown or 'no limit'} (file: {of_file})"


@app.command("apply")
def apply_upstreams(
    file: Annotated[Path, typer.Argument(help=r"TOML, a table \[upstreams.NAME] each; what is not in it is removed.")],
    empty: Annotated[bool, typer.Option("--empty", help="FILE may have none: all upstreams are removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the upstreams, and their limits, what FILE says. Workers follow within a minute."""
    text = upstreams_of(file, allow_empty=empty)

    async def work(calls: Calls) -> list[tuple[str, str]]:
        return await calls.apply_upstreams(text)

    changes = with_calls(work)
    if not changes and not as_json:
        raise CliError(f"{file} has no upstreams, and there were none", code="no_upstreams", exit_code=FAILED)
    lines = "\n".join(f"{change:8} {name}" for name, change in changes)
    emit(as_json, [{"name": name, "change": change} for name, change in changes], lines)
