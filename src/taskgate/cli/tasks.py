"""get, list, cancel, retry: reading and steering tasks over HTTP."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.errors import FAILED, OK, USAGE, CliError
from taskgate.cli.output import clean, console, local_time, print_json, print_json_line, print_table
from taskgate.cli.places import client

if TYPE_CHECKING:
    from taskgate.client import Client
    from taskgate.views import TaskView

UrlOption = Annotated[str | None, typer.Option("--url", help="The API; default: TASKGATE_URL or the running `up`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Output for machines.")]


def get(
    task_id: Annotated[str, typer.Argument(help="The task's id.")],
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it is final.")] = False,
    within: Annotated[float | None, typer.Option(min=0, help="Wait so many seconds at most (implies --wait).")] = None,
    history: Annotated[bool, typer.Option("--history", help="Show every attempt.")] = False,
    request: Annotated[bool, typer.Option("--request", help="Show the request.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a task. Exit code 1 when it failed, or is not final in the time it was waited for."""
    include = [name for name, wanted in (("request", request), ("history", history)) if wanted]
    with client(url) as api:
        if wait or within is not None:
            view = finish(api, task_id, within, include)
        else:
            view = api.get(task_id, include=include)
    if as_json:
        print_json(dict(view.raw))
    else:
        show(view)
    raise typer.Exit(FAILED if view.status == "failed" else OK)


def list_tasks(
    status: Annotated[str | None, typer.Option(help="pending, running, completed or failed.")] = None,
    task_type: Annotated[str | None, typer.Option("--type", "-t", help="Of this type only.")] = None,
    after: Annotated[str | None, typer.Option(help="Created at or after this time (ISO 8601).")] = None,
    before: Annotated[str | None, typer.Option(help="Created before this time (ISO 8601).")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="So many a page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="The next_cursor of the page before.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every page, not one.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks, newest first. With --all --json: one JSON object a line."""
    created_after, created_before = _moment(after, "--after"), _moment(before, "--before")
    with client(url) as api:
        if everything and as_json:
            for view in api.list_all(
                status=status, task_type=task_type, created_after=created_after, created_before=created_before
            ):
                print_json_line(dict(view.raw))
            return
        while True:
            page = api.list(
                status=status,
                task_type=task_type,
                created_after=created_after,
                created_before=created_before,
                limit=limit,
                cursor=cursor,
            )
            if as_json:
                print_json({"items": [dict(view.raw) for view in page.items], "next_cursor": page.next_cursor})
            else:
                _print_page(page.items)
            cursor = page.next_cursor
            if cursor is None or not everything:
                break
    if cursor is not None and not as_json:
        console(stderr=True).print(f"More: --cursor {cursor} or --all", style="dim")


def cancel(
    task_ids: Annotated[list[str], typer.Argument(metavar="TASK_ID...", help="The tasks' ids.")],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel tasks: a pending one ends at once, a running one is told to stop."""
    _each(task_ids, url, as_json, lambda api, task_id: api.cancel(task_id))


def retry(
    task_ids: Annotated[list[str], typer.Argument(metavar="TASK_ID...", help="The tasks' ids.")],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put failed tasks back into the queue, with all their attempts."""
    _each(task_ids, url, as_json, lambda api, task_id: api.retry(task_id).status)


def _each(task_ids: list[str], url: str | None, as_json: bool, act: Any) -> None:
    """One action on several tasks; all are tried, exit code 1 if one was refused."""
    from taskgate.errors import Conflict, NotFound

    outcomes: list[dict[str, Any]] = []
    with client(url) as api:
        for task_id in task_ids:
            try:
                outcomes.append({"task_id": task_id, "outcome": act(api, task_id), "detail": None})
            except (Conflict, NotFound) as error:
                outcomes.append({"task_id": task_id, "outcome": error.code, "detail": error.detail, "refused": True})
    refused = any(outcome.pop("refused", False) for outcome in outcomes)
    if as_json:
        print_json(outcomes)
    else:
        for each in outcomes:
            why = f": {each['detail']}" if each["detail"] else ""
            print(clean(f"{each['task_id']} {each['outcome']}{why}"))
    raise typer.Exit(FAILED if refused else OK)


def finish(api: Client, task_id: str, within: float | None, include: list[str] | None = None) -> TaskView:
    """Waits for a task. Raises CliError when it is not final in time."""
    from taskgate.errors import WaitTimeout

    try:
        return api.wait(task_id, timeout=within, include=include or ())
    except WaitTimeout as error:
        raise CliError(
            error.detail,
            code=error.code,
            exit_code=FAILED,
            remedy=f"It goes on: taskgate get {task_id} --wait",
            task_id=task_id,
        ) from None


def show(view: TaskView) -> None:
    """A task for people."""
    attempts = f"{view.attempts} of {view.max_attempts}" if view.max_attempts else str(view.attempts)
    facts = [
        ("task", view.task_id),
        ("type", view.task_type),
        ("status", view.status),
        ("attempts", attempts),
        ("created", local_time(view.created_at)),
        ("not before", local_time(view.run_at) if view.status == "pending" else ""),
        ("started", local_time(view.started_at)),
        ("finished", local_time(view.finished_at)),
        ("took", _took(view)),
        ("error", f"{view.error} ({view.error_code})" if view.error and view.error_code else view.error),
        ("progress", _compact(view.progress)),
        ("metadata", _compact(view.metadata)),
    ]
    width = max(len(name) for name, value in facts if value)
    for name, value in facts:
        if value:
            print(clean(f"{name:<{width}}  {value}"))
    if view.request is not None:
        print(f"\nrequest\n{clean(json.dumps(view.request, ensure_ascii=False, indent=2))}")
    if view.result is not None:
        text = view.result.get("text") if isinstance(view.result, dict) else None
        shown = text if isinstance(text, str) else json.dumps(view.result, ensure_ascii=False, indent=2)
        print(f"\nresult\n{clean(shown)}")
    if view.history:
        print("\nhistory")
        print_table(
            ("attempt", "outcome", "started", "finished", "worker", "error"),
            [
                [
                    each.get("attempt"),
                    each.get("outcome") or "",
                    _shown_time(each.get("started_at")),
                    _shown_time(each.get("finished_at")),
                    each.get("worker_id"),
                    each.get("error"),
                ]
                for each in view.history
            ],
            right=("attempt",),
        )


def _print_page(items: tuple[TaskView, ...]) -> None:
    print_table(
        ("task", "type", "status", "attempts", "created", "took", "error"),
        [
            [v.task_id, v.task_type, v.status, v.attempts, local_time(v.created_at), _took(v), (v.error or "")[:80]]
            for v in items
        ],
        right=("attempts", "took"),
    )


def _took(view: TaskView) -> str:
    if view.started_at is None or view.finished_at is None:
        return ""
    return f"{(view.finished_at - view.started_at).total_seconds():.2f} s"


def _shown_time(text: Any) -> str:
    return local_time(datetime.fromisoformat(text)) if isinstance(text, str) else ""


def _compact(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise CliError(
            f"{option}: {text!r} is no time; write it like 2030-01-31T08:00:00+01:00", code="usage", exit_code=USAGE
        ) from None
