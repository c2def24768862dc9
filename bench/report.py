"""What a comparison found: a figure is the median of its runs, beside the lowest and the highest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` percent of the values do not exceed. Raises ValueError without values."""
    ranked = sorted(values)
    if not ranked:
        raise ValueError("no values")
    return ranked[max(0, math.ceil(len(ranked) * share / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Measure:
    """One line: the figure of each run, what it is measured in, and the bound it is held to."""

    name: str
    runs: Sequence[float]
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def value(self) -> float:
        return median(self.runs)

    @property
    def met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def target(self) -> str:
        bounds = [("≥", self.at_least), ("≤", self.at_most)]
        text = ", ".join(f"{sign} {number(bound)}" for sign, bound in bounds if bound is not None)
        return text and f"{text} {'met' if self.met else 'MISSED'}"

    def cells(self) -> list[str]:
        shown = [number(value) for value in (self.value, min(self.runs), max(self.runs))]
        return [self.name, *shown, self.unit, self.target]


def number(value: float) -> str:
    """Three digits that count, and thousands set apart."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


@dataclass(slots=True)
class Report:
    """A comparison's figures, and how they came about."""

    title: str
    server: str
    """The server and its settings; "" when none was used."""
    measures: list[Measure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        runs: float | Sequence[float],
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Measure:
        values = [runs] if isinstance(runs, (int, float)) else list(runs)
        measure = Measure(name, values, unit, at_least, at_most)
        self.measures.append(measure)
        return measure

    def table(self) -> str:
        """A table of Markdown that also reads well as it is."""
        rows = [["measure", "median", "lowest", "highest", "unit", "target"], *(each.cells() for each in self.measures)]
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        lines = []
        for index, row in enumerate(rows):
            cells = [
                cell.rjust(width) if 1 <= column <= 3 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append(f"| {' | '.join(cells)} |")
            if index == 0:
                rule = ["-" * (width - 1) + ":" if 1 <= c <= 3 else "-" * width for c, width in enumerate(widths)]
                lines.append(f"| {' | '.join(rule)} |")
        return "\n".join(lines)

    def markdown(self, when: str, command: str, machine: str, quiet: str) -> str:
        """The section for RESULTS.md."""
        facts = [f"{when}. Machine: {machine}. Before the start: {quiet}."]
        facts += [f"Server: {self.server}."] if self.server else []
        parts = [f"## {self.title}", "\n".join(facts), f"Command: `{command}`", self.table()]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"
