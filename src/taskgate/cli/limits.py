"""limits: how many tasks run at once, in the whole fleet and in groups; read and changed live, over SQL."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.errors import USAGE, CliError
from taskgate.cli.groups import Group, named, takes_group, words
from taskgate.cli.output import clean, duration, emit, local_time, print_table
from taskgate.cli.places import load_settings, with_calls
from taskgate.cli.tasks import JsonOption

if TYPE_CHECKING:
    from taskgate.protocol.calls import Calls

limits = typer.Typer(help="Show or set how many tasks run at once: in the whole fleet, and of one type, model, …")


@limits.callback(invoke_without_command=True)
def limits_alone(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show or set how many tasks run at once: in the whole fleet, and of groups. Alone: show."""
    if context.invoked_subcommand is None:
        limits_show(as_json)
    elif as_json:
        raise CliError(f"put --json behind `{context.invoked_subcommand}`", code="usage", exit_code=USAGE)


@limits.command("show")
def limits_show(as_json: JsonOption = False) -> None:
    """Show the limits and what runs now."""

    async def work(calls: Calls) -> tuple[Any, Any, list[Any], list[Any]]:
        return await calls.settings(), await calls.stats(), await calls.limits(), await calls.cooldowns()

    fleet, stats, groups, cooling = with_calls(work)
    limit, running = fleet["max_concurrent"], stats["running"]
    value = {
        "limit": limit,
        "running": running,
        "updated_at": fleet["updated_at"],
        "groups": [dict(row) for row in groups],
        "cooldowns": [dict(row) for row in cooling],
    }
    paused = " (paused)" if limit == 0 else ""
    emit(as_json, value, f"limit    {limit}{paused}\nrunning  {running}\nset at   {local_time(fleet['updated_at'])}")
    if as_json:
        return
    if groups:
        print()
        print_table(
            ("of", "limit", "running", "a minute", "left", "set at"),
            [
                [
                    words((row["scope"], row["name"])),
                    _limit(row["max_concurrent"]),
                    row["running"],
                    _rates(row["requests_per_minute"], row["tokens_per_minute"]),
                    _rates(row["requests_left"], row["tokens_left"]) if row["name"] != "*" else "",
                    local_time(row["updated_at"]),
                ]
                for row in groups
            ],
            right=("limit", "running", "a minute", "left"),
        )
    if cooling:
        print()
        print_table(
            ("cools down", "for", "because"),
            [[words((row["scope"], row["name"])), duration(row["seconds"]), row["reason"] or ""] for row in cooling],
        )


@limits.command("set")
@takes_group
def limits_set(
    limit: Annotated[int, typer.Argument(min=0, max=1_000_000, help="Tasks at once; 0 pauses.")],
    *,
    group: Group | None,
    as_json: JsonOption = False,
) -> None:
    """Set the limit of the whole fleet, or of a group, at once. Running calls finish."""

    async def work(calls: Calls) -> int | None:
        if group is None:
            before: int | None = int((await calls.settings())["max_concurrent"])
            await calls.set_limit(limit)
        else:
            before = await _of(calls, group)
            await calls.set_group_limit(*group, limit)
            await _warn_unknown(calls, group)
        return before

    before = with_calls(work)
    if group is not None:
        _note_nameless(group)
    value = {"limit": limit, "before": before} | named(group)
    of = "" if group is None else f" of {words(group)}"
    emit(as_json, value, f"limit{of} {_limit(before)} -> {limit}{' (paused)' if limit == 0 else ''}")


@limits.command("rate")
@takes_group
def limits_rate(
    *,
    requests: Annotated[float | None, typer.Option(min=0.001, help="Calls a minute.")] = None,
    burst: Annotated[
        float | None, typer.Option(min=1, help="Calls at once; what a second brings if not given.")
    ] = None,
    tokens: Annotated[float | None, typer.Option(min=1, help="Tokens a minute.")] = None,
    tokens_burst: Annotated[float | None, typer.Option(min=1, help="At once; a minute's if not given.")] = None,
    tokens_default: Annotated[
        int | None, typer.Option(min=0, help="Of an answer, where a request sets no max_tokens.")
    ] = None,
    group: Group | None,
    as_json: JsonOption = False,
) -> None:
    """Set how many calls of a group start a minute, and how many tokens they take. What is not given is unlimited."""
    if group is None:
        raise CliError("name a group, such as --model gpt-5 or --each-tenant", code="usage", exit_code=USAGE)

    async def work(calls: Calls) -> None:
        await calls.set_rate(
            *group,
            requests=requests,
            requests_burst=burst,
            tokens=tokens,
            tokens_burst=tokens_burst,
            tokens_default=tokens_default,
        )
        await _warn_unknown(calls, group)

    with_calls(work)
    _note_nameless(group)
    value = {"requests_per_minute": requests, "tokens_per_minute": tokens} | named(group)
    emit(as_json, value, f"rate of {words(group)}: {_rates(requests, tokens) or 'none'}")


@limits.command("unset")
@takes_group
def limits_unset(
    *,
    group: Group | None,
    as_json: JsonOption = False,
) -> None:
    """Take the limits of a group away, rates too, at once."""
    if group is None:
        raise CliError(
            "the fleet always has a limit: name a group, such as --type veo",
            code="usage",
            exit_code=USAGE,
            remedy="`taskgate limits set 1000000` is as good as none.",
        )

    async def work(calls: Calls) -> bool:
        return await calls.remove_limit(*group)

    removed = with_calls(work)
    emit(
        as_json,
        {"removed": removed} | named(group),
        f"{words(group)}: {'no limit any more' if removed else 'had none'}",
    )


async def _of(calls: Calls, group: Group) -> int | None:
    rows = await calls.limits()
    return next((row["max_concurrent"] for row in rows if (row["scope"], row["name"]) == group), None)


async def _warn_unknown(calls: Calls, group: Group) -> None:
    """Says on stderr that nothing of that name is known (yet): it may be a slip of the pen."""
    scope, name = group
    if name == "*":
        return
    if scope == "tenant":
        keys = sorted(key.name for key in load_settings().api_keys)
        if name in keys or await calls.page(tenant=name, limit=1):
            return
        there = f"TASKGATE_API_KEYS has {', '.join(keys)}" if keys else "TASKGATE_API_KEYS is not set here"
        _note(f"No task of a tenant {name} is known, and no API key of that name ({there}); "
              "the limit holds once there is one.")  # fmt: skip
    elif scope in ("type", "upstream"):
        known = sorted(row["name"] for row in await (calls.types() if scope == "type" else calls.upstreams()))
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there is none"
            _note(f"No {scope} {name} is known ({there}); the limit holds once there is one.")


def _note_nameless(group: Group) -> None:
    """What the group of a model leaves out, which its limit would be expected to hold for."""
    if group[0] == "model":
        _note("Tasks that name no model do not count here, whichever they run on: limit them by --type or --upstream.")


def _note(line: str) -> None:
    print(clean(line), file=sys.stderr)


def _limit(value: int | None) -> str:
    return "none" if value is None else str(value)


def _rates(requests: float | None, tokens: float | None) -> str:
    parts = [(requests, "calls"), (tokens, "tokens")]
    return ", ".join(f"{int(value):,} {what}" for value, what in parts if value is not None)
