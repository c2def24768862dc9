"""Why a pending task waits, for `taskgate get`: asked of the database, where this user has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from taskgate.cli.errors import CliError
from taskgate.cli.output import duration
from taskgate.cli.places import with_calls

SECONDS = 5.0
"""The task is shown without it when the database takes longer."""


def waiting_for(task_id: str) -> str | None:
    """What this task waits for now; None where that cannot be told: without the database, or pending no more."""
    try:
        row = with_calls(lambda calls: calls.waiting(task_id), within=SECONDS, quiet=True)
    except CliError:
        return None
    return None if row is None else "; ".join(_reasons(row)) or "its turn"


def _reasons(row: Any) -> Iterator[str]:
    """From a record of queries/waiting.sql. Limits do not matter before a task is due."""
    due: datetime | None = row["due"]
    if due is not None:
        yield f"its time, {due.astimezone().isoformat(timespec='seconds')}"
    if not row["workers"]:
        yield f"a worker: no live worker serves the type {row['task_type']}"
    if due is not None:
        return
    if row["running"] >= row["fleet_limit"]:
        yield _room("the whole fleet", row["running"], row["fleet_limit"])
    for group in json.loads(row["full_groups"]):
        words = f"{group['scope']} {group['name']}"
        if group["limit"] is not None and group["running"] >= group["limit"]:
            yield _room(words, group["running"], group["limit"])
        if group["seconds"]:
            yield f"the rate of {words}, which lets nothing through for {duration(group['seconds'])}"
    for group in json.loads(row["cooldowns"]):
        words = f"{group['scope']} {group['name']}, which cools down for {duration(group['seconds'])}"
        yield f"{words}: {group['reason']}" if group["reason"] else words


def _room(words: str, running: int, limit: int) -> str:
    if limit == 0:
        return f"the limit of {words} to be raised: it is 0"
    return f"room within the limit of {words}: {running} of {limit} run"
