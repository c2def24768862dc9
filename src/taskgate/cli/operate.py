"""types, stats, purge: what operators read and change, over SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.output import duration, emit, print_json, print_table
from taskgate.cli.places import with_calls
from taskgate.cli.tasks import JsonOption

if TYPE_CHECKING:
    from taskgate.protocol.calls import Calls


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
