"""limits, types, stats, purge: what operators read and change, over SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.errors import USAGE, CliError
from taskgate.cli.output import duration, emit, local_time, print_json, print_table
from taskgate.cli.places import with_calls
from taskgate.cli.tasks import JsonOption

if TYPE_CHECKING:
    from taskgate.protocol.calls import Calls

limits = typer.Typer(help="Show or set how many tasks run at once in the whole fleet.")


@limits.callback(invoke_without_command=True)
def limits_alone(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show or set how many tasks run at once in the whole fleet. Alone: show."""
    if context.invoked_subcommand is None:
        limits_show(as_json)
    elif as_json:
        raise CliError(f"put --json behind `{context.invoked_subcommand}`", code="usage", exit_code=USAGE)


@limits.command("show")
def limits_show(as_json: JsonOption = False) -> None:
    """Show the limit and what runs now."""

    async def work(calls: Calls) -> tuple[Any, Any]:
        return await calls.settings(), await calls.stats()

    fleet, stats = with_calls(work)
    limit, running = fleet["max_concurrent"], stats["running"]
    value = {"limit": limit, "running": running, "updated_at": fleet["updated_at"]}
    paused = " (paused)" if limit == 0 else ""
    emit(as_json, value, f"limit    {limit}{paused}\nrunning  {running}\nset at   {local_time(fleet['updated_at'])}")


@limits.command("set")
def limits_set(
    limit: Annotated[int, typer.Argument(min=0, max=1_000_000, help="Tasks at once; 0 pauses.")],
    task_type: Annotated[str | None, typer.Option("--type", help="For one task type.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Set the limit of the whole fleet, at once. Running calls finish."""
    if task_type is not None:
        raise CliError(
            "limits for one task type are not built yet",
            code="not_built",
            exit_code=USAGE,
            remedy=f"`taskgate limits set {limit}` sets the limit of all types together.",
        )

    async def work(calls: Calls) -> int:
        before = int((await calls.settings())["max_concurrent"])
        await calls.set_limit(limit)
        return before

    before = with_calls(work)
    emit(as_json, {"limit": limit, "before": before}, f"limit {before} -> {limit}{' (paused)' if limit == 0 else ''}")


def types(as_json: JsonOption = False) -> None:
    """List the registered task types, and how many live workers serve each."""

    async def work(calls: Calls) -> tuple[list[Any], list[Any]]:
        return await calls.types(), await calls.workers()

    rows, workers = with_calls(work)
    serving = {
        row["name"]: sum(1 for w in workers if w["silent_seconds"] < 120 and row["name"] in (w["types"] or []))
        for row in rows
    }
    if as_json:
        print_json(
            [
                {
                    "name": row["name"],
                    "description": row["description"],
                    "workers": serving[row["name"]],
                    "request_schema": None if row["request_schema"] is None else json.loads(row["request_schema"]),
                    "registered_at": row["registered_at"],
                    "updated_at": row["updated_at"],
                }
                for row in rows
            ]
        )
        return
    print_table(
        ("type", "workers", "schema", "description"),
        [
            [row["name"], serving[row["name"]], "yes" if row["request_schema"] else "", row["description"]]
            for row in rows
        ],
        right=("workers",),
    )


def stats(as_json: JsonOption = False) -> None:
    """Show the queue, by type, and the workers."""

    async def work(calls: Calls) -> tuple[Any, list[Any], list[Any]]:
        return await calls.stats(), await calls.stats_by_type(), await calls.workers()

    queue, by_type, workers = with_calls(work)
    if as_json:
        print_json(
            {
                **dict(queue),
                "by_type": [dict(row) for row in by_type],
                "worker_list": [dict(row) for row in workers],
            }
        )
        return
    print_table(
        ("limit", "running", "pending", "of it delayed", "oldest pending", "workers", "slots"),
        [
            [
                queue["limit"],
                queue["running"],
                queue["pending"],
                queue["delayed"],
                duration(queue["oldest_pending_seconds"]),
                queue["workers"],
                queue["slots"],
            ]
        ],
    )
    if by_type:
        print()
        print_table(("type", "status", "tasks"), [list(row.values()) for row in by_type], right=("tasks",))
    if workers:
        print()
        print_table(
            ("worker", "language", "version", "busy", "slots", "seen", "state", "types"),
            [
                [
                    row["worker_id"],
                    row["language"],
                    row["version"],
                    row["busy"],
                    row["slots"],
                    f"{duration(max(0.0, row['silent_seconds']))} ago",
                    "draining" if row["draining"] else "silent" if row["silent_seconds"] > 120 else "alive",
                    ", ".join(row["types"] or []),
                ]
                for row in workers
            ],
            right=("busy", "slots"),
        )


def purge(
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Rows deleted in one transaction.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Delete the finished tasks whose time has come. API and workers do it by themselves."""

    async def work(calls: Calls) -> int:
        total = 0
        while True:
            purged = await calls.purge(batch)
            total += purged
            if purged < batch:
                return total

    total = with_calls(work)
    emit(as_json, {"purged": total}, f"{total} tasks deleted")
