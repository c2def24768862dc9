"""`taskgate submit`: one task from a prompt or a JSON body, or many from NDJSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.checks import SILENT_SECONDS
from taskgate.cli.errors import FAILED, USAGE, CliError, explain
from taskgate.cli.output import clean, print_json, print_json_line
from taskgate.cli.places import client
from taskgate.cli.tasks import UrlOption, finish, show
from taskgate.submission import Options

if TYPE_CHECKING:
    from taskgate.client import Client
    from taskgate.errors import RequestRefused


def submit(
    prompt: Annotated[str | None, typer.Argument(help="The prompt of an llm or video task.")] = None,
    request: Annotated[
        str | None, typer.Option("--request", "-r", metavar="FILE", help="The whole request as JSON; - reads stdin.")
    ] = None,
    many: Annotated[
        str | None, typer.Option(metavar="FILE", help="Many requests, one JSON object a line; - reads stdin.")
    ] = None,
    task_type: Annotated[str, typer.Option("--type", "-t", help="The task type.")] = "llm",
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    model: Annotated[str | None, typer.Option(help="The model.")] = None,
    image: Annotated[list[str] | None, typer.Option(help="URL of an image; repeatable.")] = None,
    task_id: Annotated[str | None, typer.Option(help="An id of your own; taken: an error, nothing is written.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and submission: the same task, not another one.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="9 goes first; default 4.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds before it may start.")] = None,
    run_at: Annotated[
        datetime | None,
        typer.Option(
            help="Not before this time (local time, or with offset).",
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"],
        ),
    ] = None,
    start_within: Annotated[
        float | None, typer.Option(help="Fails as `expired` if not started in so many seconds.")
    ] = None,
    attempt_timeout: Annotated[float | None, typer.Option(help="Seconds one attempt may take.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, max=1000, help="Attempts.")] = None,
    upstream: Annotated[str | None, typer.Option(help="The upstream it goes to; else the model says.")] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object of yours, kept with the task.")] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it is final; exit 1 if it failed.")] = False,
    within: Annotated[float | None, typer.Option(min=0, help="Wait so many seconds at most (implies --wait).")] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Output for machines.")] = False,
) -> None:
    """Submit a task and print its id, or with --wait its result.

    The id is printed alone on stdout, so that TASK=$(taskgate submit "…") works.
    """
    from taskgate.errors import RequestRefused

    if sum(source is not None for source in (prompt, request, many)) != 1:
        raise CliError("give a prompt, or --request FILE, or --many FILE", code="usage", exit_code=USAGE)
    try:
        options = Options(
            task_id=task_id,
            idempotency_key=idempotency_key,
            priority=priority,
            delay_seconds=delay,
            run_at=None if run_at is None else run_at.astimezone(),
            start_within_seconds=start_within,
            timeout_seconds=attempt_timeout,
            max_attempts=max_attempts,
            upstream=upstream,
            metadata=None if metadata is None else _json(metadata, "--metadata"),
        )
        if many is not None:
            if prompt or system or model or image or wait or within is not None:
                raise CliError("--many takes whole requests and does not wait", code="usage", exit_code=USAGE,
                               remedy="Wait with `taskgate watch ID …`.")  # fmt: skip
            _submit_many(many, task_type, options, url, as_json)
            return
        body = _body(prompt, request, {"system": system, "model": model, "images": image or None})
        with client(url) as api:
            try:
                submitted = api.submit(body, task_type=task_type, **_as_keywords(options))
            except RequestRefused as error:
                raise _with_remedy(error, prompt, task_type) from None
            if not wait and within is None:
                _print_submitted(submitted.task_id, submitted.status, as_json)
                return
            if not as_json:
                print(submitted.task_id, file=sys.stderr, flush=True)
                _warn_unserved(api, task_type)
            view = finish(api, submitted.task_id, within)
    except ValueError as error:
        raise CliError(str(error), code="invalid_request", exit_code=USAGE) from None
    if as_json:
        print_json(dict(view.raw))
    elif view.ok and isinstance(view.result, dict) and isinstance(view.result.get("text"), str):
        print(clean(view.result["text"]))
    else:
        show(view)
    if not view.ok:
        raise typer.Exit(FAILED)


def _with_remedy(error: RequestRefused, prompt: str | None, task_type: str) -> Exception:
    """A type of the user's own may want another request than the prompt alone."""
    if prompt is None or task_type in ("llm", "veo") or error.code != "invalid_request":
        return error
    refused = explain(error)
    assert refused is not None
    refused.remedy = (
        f'What was sent is {{"prompt": …}}; give the whole request of a {task_type} task with --request FILE (- reads '
        "stdin). Its schema: taskgate types --json."
    )
    return refused


def _warn_unserved(api: Client, task_type: str) -> None:
    """Says that nobody is there to wait for, where the API lets this caller know."""
    from taskgate.errors import TaskgateError

    try:
        workers = api.workers()
    except TaskgateError:
        return  # for admins only, where there are keys
    if not any(task_type in (each["types"] or []) and each["silent_seconds"] <= SILENT_SECONDS for each in workers):
        print(
            f"No live worker serves the type {task_type}: the task waits for one (taskgate worker --app MODULE).",
            file=sys.stderr,
            flush=True,
        )


def _print_submitted(task_id: str, status: str, as_json: bool) -> None:
    if as_json:
        print_json_line({"task_id": task_id, "status": status})
    else:
        print(task_id)


def _as_keywords(options: Options) -> Any:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}


def _body(prompt: str | None, request: str | None, extra: dict[str, Any]) -> dict[str, Any]:
    body = {"prompt": prompt} if prompt is not None else _json(_read(request or "-"), "--request")
    if not isinstance(body, dict):
        raise ValueError("--request: the request must be a JSON object")
    return body | {name: value for name, value in extra.items() if value is not None}


def _submit_many(file: str, task_type: str, options: Options, url: str | None, as_json: bool) -> None:
    from taskgate.errors import TaskgateError

    count = 0
    with client(url) as api:
        try:
            for part in api.submit_chunks(_lines(file), task_type=task_type, **_as_keywords(options)):
                for each in part:
                    _print_submitted(each.task_id, each.status, as_json)
                count += len(part)
                if sys.stderr.isatty():
                    print(f"\r{count} accepted", end="", file=sys.stderr, flush=True)
        except (TaskgateError, ValueError):
            print(f"{count} tasks were accepted before the error", file=sys.stderr)
            raise
    if not as_json:
        print(f"\r{count} accepted", file=sys.stderr)


def _lines(file: str) -> Iterator[dict[str, Any]]:
    with sys.stdin if file == "-" else _open(file) as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            value = _json(line, f"{file}, line {number}")
            if not isinstance(value, dict):
                raise ValueError(f"{file}, line {number}: not a JSON object")
            yield value


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: no valid JSON: {error}") from None


def _open(file: str) -> Any:
    try:
        return Path(file).open(encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}", code="usage", exit_code=USAGE) from None


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    with _open(file) as source:
        return str(source.read())
