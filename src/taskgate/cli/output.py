"""Printing: Rich for people, plain JSON for machines; nothing a task holds can steer the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 1000  # a pipe has no width; columns must not be cut for it
_CONTROL = {code: "�" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def emit(as_json: bool, value: Any, text: str) -> None:
    """The one result of a command: `value` with --json, else `text`."""
    print_json(value) if as_json else print(clean(text))


def print_json(value: Any) -> None:
    """One JSON document, indented; times as RFC 3339."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def print_json_line(value: Any) -> None:
    """One JSON document in one line, at once: for streams."""
    print(json.dumps(value, ensure_ascii=False, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} is not JSON")


def clean(text: str) -> str:
    """Text without control characters: those of a task's texts must not reach the terminal."""
    return text.translate(_CONTROL)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = ()) -> Table:
    """A table without frames. `right` names the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    numbers = set(right)
    for name in columns:
        grid.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(clean("" if cell is None else str(cell))) for cell in row))
    return grid


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = ()) -> None:
    console().print(table(columns, rows, right=right))


def duration(seconds: float | None) -> str:
    """For people: `12 s`, `3 min 5 s`, `2 h 10 min`, `4 d`."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {int(seconds % 60)} s" if int(seconds % 60) else "")
    if minutes < 48 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{minutes // 1440} d"


def local_time(value: datetime | None) -> str:
    """A time in this machine's zone, to the second."""
    return "" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
