"""`taskgate watch`: the queue as it moves, or given tasks until they are final."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from taskgate.cli.errors import FAILED, OK
from taskgate.cli.output import clean, console, print_json_line
from taskgate.cli.places import async_client, client
from taskgate.cli.tasks import JsonOption, UrlOption
from taskgate.errors import TaskgateError
from taskgate.views import TaskView

AT_ONCE = 50  # long polls open at the same time


def watch(
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK_ID...]", help="Tasks; none: the queue.")
    ] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when nothing is pending or running.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks at the queue.")] = 0.5,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the queue, or the given tasks until they are final. Exit code 1 when one of them failed.

    With --json: one object a line, for the queue at each change, for tasks as each becomes final.
    """
    if task_ids:
        raise typer.Exit(asyncio.run(_watch_tasks(task_ids, url, as_json)))
    _watch_queue(url, until_empty, interval, as_json)


def _watch_queue(url: str | None, until_empty: bool, interval: float, as_json: bool) -> None:
    from rich.live import Live

    out = console()
    before: tuple[int, int, int] | None = None
    highest = 0
    with client(url) as api, Live(console=out, auto_refresh=False, transient=False) as live:
        while True:
            stats = api.stats()
            now = (int(stats["limit"]), int(stats["running"]), int(stats["pending"]))
            highest = max(highest, now[1] + now[2])
            if now != before:
                before = now
                if as_json:
                    print_json_line({"at": time.time(), "limit": now[0], "running": now[1], "pending": now[2]})
                elif out.is_terminal:
                    live.update(_bars(*now, highest), refresh=True)
                else:
                    print(f"running {now[1]} of {now[0]}, pending {now[2]}", flush=True)
            if until_empty and now[1] == now[2] == 0:
                return
            time.sleep(interval)


def _bars(limit: int, running: int, pending: int, highest: int) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    paused = " (paused)" if limit == 0 else ""
    grid.add_row("running", ProgressBar(max(limit, 1), running, width=40), f"{running} of {limit}{paused}")
    grid.add_row("pending", ProgressBar(max(highest, 1), pending, width=40), str(pending))
    return grid


async def _watch_tasks(task_ids: list[str], url: str | None, as_json: bool) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    wanted = list(dict.fromkeys(task_ids))
    gate = asyncio.Semaphore(AT_ONCE)
    failed = 0
    errors = console(stderr=True)
    columns = (TextColumn("tasks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with async_client(url) as api:

        async def one(task_id: str) -> TaskView | TaskgateError:
            async with gate:
                try:
                    return await api.wait(task_id)
                except TaskgateError as error:
                    if error.code != "not_found":
                        raise
                    return error

        with Progress(*columns, console=errors, transient=True, disable=as_json or not errors.is_terminal) as bar:
            row = bar.add_task("tasks", total=len(wanted))
            pending = [asyncio.ensure_future(one(task_id)) for task_id in wanted]
            try:
                for next_done in asyncio.as_completed(pending):
                    failed += _tell(await next_done, as_json)
                    bar.advance(row)
            finally:
                for each in pending:
                    each.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
    return FAILED if failed else OK


def _tell(outcome: TaskView | TaskgateError, as_json: bool) -> int:
    """One line about a task that is final; 1 when it did not complete."""
    if isinstance(outcome, TaskgateError):
        value = {"task_id": outcome.task_id, "status": "not_found", "error": outcome.detail}
        text = f"{outcome.task_id} not_found"
    else:
        value = dict(outcome.raw)
        why = f": {outcome.error}" if outcome.error else ""
        text = f"{outcome.task_id} {outcome.status}{why}"
    if as_json:
        print_json_line(value)
    else:
        print(clean(text), flush=True)
    return 0 if isinstance(outcome, TaskView) and outcome.ok else 1
