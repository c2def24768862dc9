"""get, list, cancel, retry: reading and steering tasks over HTTP."""

from __future__ import annotations

import json
import mimetypes
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.errors import FAILED, OK, USAGE, CliError
from taskgate.cli.output import clean, console, emit, local_time, print_json, print_json_line, print_table
from taskgate.cli.places import client
from taskgate.cli.waiting import waiting_for

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
    media: Annotated[str | None, typer.Option("--media", "-m", help="Save this image or video of it.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The file for --media; -: stdout.")] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a task. Exit code 1 when it failed, or is not final in the time it was waited for.

    Where the database is known too (DATABASE_URL, or a running `up`), it says what a pending task waits for.
    """
    if output is not None and media is None:
        raise CliError("--output goes with --media NAME", code="usage", exit_code=USAGE)
    include = [name for name, wanted in (("request", request), ("history", history)) if wanted]
    with client(url) as api:
        if wait or within is not None:
            view = finish(api, task_id, within, include)
        else:
            view = api.get(task_id, include=include)
        if media is not None:
            save_media(api, task_id, media, output, as_json)
            return
    waits = waiting_for(view.task_id) if view.status == "pending" else None
    if as_json:
        print_json({**view.raw, **({"waiting_for": waits} if waits else {})})
    else:
        show(view, waits)
    raise typer.Exit(FAILED if view.status == "failed" else OK)


def save_media(api: Client, task_id: str, name: str, output: str | None, as_json: bool) -> None:
    """One medium into a file, by default one of its name in this folder that is not there yet."""
    try:
        with api.media(task_id, name) as found:
            if output == "-":
                for piece in found:
                    sys.stdout.buffer.write(piece)
                return
            path = Path(output or (name if "." in name else name + (mimetypes.guess_extension(found.mime) or "")))
            if output is None and path.exists():
                raise CliError(f"{path} exists", code="file_exists", remedy="Say where to with --output FILE.")
            found.save(path)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise CliError(f"cannot write {output or name}: {error.strerror or error}", code="cannot_write") from None
    except ValueError as error:
        raise CliError(str(error), code="usage", exit_code=USAGE) from None
    value = {"file": str(path), "bytes": found.size, "mime": found.mime, "sha256": found.sha256}
    emit(as_json, value, clean(f"{path}  {found.mime}, {found.size} bytes"))


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
    if status in ("cancelled", "canceled"):
        raise CliError(
            f"there is no status {status}: a cancelled task is `failed`, with the error code cancelled",
            code="usage",
            exit_code=USAGE,
            remedy="""taskgate list --status failed --all --json | jq -c 'select(.error_code == "cancelled")'""",
        )
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
    """Cancel tasks: a pending one ends at once, a running one (or the next worker of an open video) is told to stop."""
    _each(task_ids, url, as_json, lambda api, task_id: api.cancel(task_id))


def retry(
    task_ids: Annotated[list[str], typer.Argument(metavar="TASK_ID...", help="The tasks' ids.")],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put failed tasks back into the queue, with all their attempts: they are counted from 1 again.

    The history (`get --history`) goes on: its first column counts every attempt there was.
    """
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


MEANINGS = {
    "submit_ambiguous": "A paid call was cut off while it was sent, and nobody knows whether the provider took it and "
    "charges for it. Look into the provider's account; `taskgate retry` sends it anew."
}
"""What to make of errors whose stable word says little."""


def show(view: TaskView, waits: str | None = None) -> None:
    """A task for people. `waits`: what it waits for."""
    attempts = f"{view.attempts} of {view.max_attempts}" if view.max_attempts else str(view.attempts)
    facts = [
        ("task", view.task_id),
        ("type", view.task_type),
        ("status", _status(view)),
        ("attempts", attempts),
        ("created", local_time(view.created_at)),
        ("not before", local_time(view.run_at) if view.status == "pending" else ""),
        ("waiting for", waits),
        ("started", local_time(view.started_at)),
        ("finished", local_time(view.finished_at)),
        ("took", _took(view)),
        ("error", f"{view.error} ({view.error_code})" if view.error_code not in (None, view.error) else view.error),
        ("meaning", MEANINGS.get(view.error or "")),
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
            ("no", "attempt", "outcome", "started", "took", "worker", "model", "usage", "operation", "error"),
            [[number, *_attempt(each)] for number, each in enumerate(view.history, 1)],
            right=("no", "attempt", "took"),
        )


def _status(view: TaskView) -> str:
    asked = view.raw.get("cancel_requested") is True and not view.is_final
    return f"{view.status}, cancel requested" if asked else view.status


def _attempt(each: Mapping[str, Any]) -> list[Any]:
    seconds, operation = each.get("seconds"), each.get("operation")
    model = each.get("model") or ""
    return [
        each.get("attempt"),
        each.get("outcome") or "",
        _shown_time(each.get("started_at")),
        f"{seconds:.2f} s" if isinstance(seconds, int | float) else "",
        each.get("worker_id"),
        f"{model} at {each['upstream']}" if each.get("upstream") else model,
        _usage(each.get("usage")),
        operation.get("name") if isinstance(operation, dict) else None,
        each.get("error"),
    ]


def _usage(usage: Any) -> str:
    """The plain numbers of a usage: `prompt_tokens 12, completion_tokens 7`."""
    if not isinstance(usage, dict):
        return ""
    return ", ".join(f"{name} {value}" for name, value in usage.items() if isinstance(value, int | float))


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
