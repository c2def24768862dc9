"""The groups that `limits` can name: the tasks of one type, model, upstream or tenant, or each of those."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from taskgate.cli.errors import USAGE, CliError

Group = tuple[str, str]
"""A scope and a name in it; `*` for each one that has no limit of its own."""

EachOption = Annotated[bool, typer.Option(help="Of each one that has no limit of its own.")]


def chosen_group(
    task_type: Annotated[str | None, typer.Option("--type", help="Of one task type.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of one model.")] = None,
    upstream: Annotated[str | None, typer.Option("--upstream", help="Through one upstream.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of one tenant, the name of its API key.")] = None,
    each_type: EachOption = False,
    each_model: EachOption = False,
    each_upstream: EachOption = False,
    each_tenant: EachOption = False,
) -> Group | None:
    """The one group that the options name; None: the whole fleet. Raises CliError for more than one."""
    one = {"type": task_type, "model": model, "upstream": upstream, "tenant": tenant}
    each = {"type": each_type, "model": each_model, "upstream": each_upstream, "tenant": each_tenant}
    groups = [(scope, name) for scope, name in one.items() if name is not None]
    groups += [(scope, "*") for scope, chosen in each.items() if chosen]
    if len(groups) > 1:
        raise CliError("one group at a time", code="usage", exit_code=USAGE)
    if groups and not groups[0][1]:
        raise CliError(f"--{groups[0][0]} needs a name", code="usage", exit_code=USAGE)
    return groups[0] if groups else None


def takes_group(command: Callable[..., None]) -> Callable[..., None]:
    """On the command line, the options of `chosen_group` stand where `command` has its parameter `group`.

    Typer reads a command's options from its signature and has no way to share some of them.
    """
    options = inspect.signature(chosen_group, eval_str=True).parameters

    @functools.wraps(command)
    def taking(**given: Any) -> None:
        group = chosen_group(**{name: given.pop(name) for name in options})
        command(**given, group=group)

    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        shown += options.values() if parameter.name == "group" else [parameter]
    taking.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in shown]
    )
    taking.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return taking


def named(group: Group | None) -> dict[str, str]:
    """For machines."""
    return {} if group is None else {"scope": group[0], "name": group[1]}


def words(group: Group) -> str:
    """For people."""
    scope, name = group
    return f"each {scope}" if name == "*" else f"{scope} {name}"
