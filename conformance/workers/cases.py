"""The cases, read from cases/*.json. Their format is described in conformance/README.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent / "cases"

Level = Literal["basic", "full"]
Step = dict[str, Any]


class BadCase(ValueError):
    """A case that cannot be understood; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class TaskIn:
    """One task of a case. Its name is its task_id, and stands in its prompt, which is how the provider knows it."""

    name: str
    type: str = "llm"
    request: dict[str, Any] | None = None
    """None: a prompt that names the task."""
    keep_order: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    script: list[Any] = field(default_factory=list)
    """What the provider does with this task's calls, in order; then it answers as usual."""
    later: bool = False
    """Enqueued by a step, not at the beginning."""


@dataclass(frozen=True, slots=True)
class Case:
    """One situation, and how it must end."""

    name: str
    theme: str
    tasks: list[TaskIn]
    expect: dict[str, Any]
    level: Level = "full"
    settings: dict[str, str | int | float] = field(default_factory=dict)
    """Settings of the worker; the fleet-wide ones go to the database as well."""
    files: dict[str, str] = field(default_factory=dict)
    """Settings that come by NAME_FILE instead."""
    upstreams: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table of upstreams."""
    workers: int = 1
    """How many processes are started at the beginning: w1, w2, …"""
    proxy: bool = False
    """The workers reach the database through a proxy that steps can steer."""
    own_postgres: bool = False
    """Needs a PostgreSQL of its own, for it is restarted."""
    steps: list[Step] = field(default_factory=list)
    until: dict[str, Any] | None = None
    """Rows to wait for at the end; None: every task is completed or failed."""

    @property
    def id(self) -> str:
        return f"{self.theme}: {self.name}"


def load_cases(*, level: Level = "full", names: Sequence[str] = ()) -> list[Case]:
    """Every case of a level (`full` includes `basic`), or those named. Raises BadCase."""
    cases: list[Case] = []
    for path in sorted(FOLDER.glob("*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            cases.append(_case(path.stem, entry))
    doubled = {case.name for case in cases if [each.name for each in cases].count(case.name) > 1}
    if doubled:
        raise BadCase(f"two cases are called {sorted(doubled)[0]!r}")
    unknown = [name for name in names if name not in {key for case in cases for key in (case.name, case.id)}]
    if unknown:
        raise BadCase(f"no case is called {unknown[0]!r}")
    return [
        case
        for case in cases
        if (level == "full" or case.level == "basic") and (not names or case.name in names or case.id in names)
    ]


def _case(theme: str, entry: dict[str, Any]) -> Case:
    name = entry.get("name", "?")
    try:
        _check_keys(entry, Case, "theme")
        tasks = []
        for task in entry["tasks"]:
            values = {"name": task} if isinstance(task, str) else task
            _check_keys(values, TaskIn)
            tasks.append(TaskIn(**values))
        return Case(theme=theme, **{**entry, "tasks": tasks})
    except (KeyError, TypeError, BadCase) as error:
        raise BadCase(f"{theme}.json, {name!r}: {error}") from error


def _check_keys(entry: dict[str, Any], kind: type[Any], *ours: str) -> None:
    known = {each.name for each in fields(kind)} - set(ours)
    if unknown := entry.keys() - known:
        raise BadCase(f"unknown {sorted(unknown)}: there are {sorted(known)}")
