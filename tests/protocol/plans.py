"""Plans of the statements INSIDE the SQL functions, as auto_explain reports them to the session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

SETTINGS = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
    "client_min_messages": "notice",
    "jit": "off",
}


@dataclass
class Plans:
    """Every plan that one call ran, innermost first; the last one is the call itself."""

    texts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """Shared blocks that the whole call touched."""
        top = self.texts[-1]["Plan"]
        return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])

    def nodes(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(statement, node) of every scan of `table` that ran."""
        for plan in self.texts:
            for node in _walk(plan["Plan"]):
                if _relation(node) == table and node["Actual Loops"] > 0:
                    yield plan["Query Text"], node

    def indexes(self, table: str) -> set[str]:
        return {node["Index Name"] for _, node in self.nodes(table) if "Index Name" in node}

    def sequential(self, table: str) -> list[str]:
        return [statement for statement, node in self.nodes(table) if node["Node Type"] == "Seq Scan"]

    def costliest(self, count: int = 3) -> str:
        """What to print when a bound is broken."""
        nested = sorted(self.texts[:-1], key=_blocks, reverse=True)[:count]
        return "\n\n".join(
            f"{_blocks(plan)} blocks: {plan['Query Text']}\n"
            + "\n".join(f"  {name}" for name in sorted({_name(node) for node in _walk(plan["Plan"])}))
            for plan in nested
        )


def explaining(dsn: str, search_path: str) -> psycopg.Connection[Any]:
    """A superuser's connection that reports every plan as a notice."""
    connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
    connection.execute("LOAD 'auto_explain'")
    connection.execute(f"SET search_path = {search_path}")
    for name, value in SETTINGS.items():
        connection.execute("SELECT set_config(%s, %s, false)", [name, value])
    return connection


@contextmanager
def collecting(connection: psycopg.Connection[Any], plans: Plans) -> Iterator[None]:
    """Adds the plans of what runs meanwhile."""

    def take(notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if text.startswith("duration:") and "plan:" in text:
            plans.texts.append(json.loads(text.split("plan:", 1)[1]))

    connection.add_notice_handler(take)
    try:
        yield
    finally:
        connection.remove_notice_handler(take)
    assert plans.texts, "auto_explain reported nothing"


def run(connection: psycopg.Connection[Any], statement: str, values: Sequence[Any] = ()) -> tuple[Plans, list[Any]]:
    """The plans and the rows of one call."""
    plans = Plans()
    with collecting(connection, plans):
        cursor = connection.execute(statement.encode(), values)
        rows = cursor.fetchall() if cursor.description else []
    return plans, rows


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


def _relation(node: dict[str, Any]) -> str | None:
    if node["Node Type"] == "Bitmap Index Scan":  # names its index alone
        return "tasks" if "tasks" in node["Index Name"] else None
    return node.get("Relation Name")


def _blocks(plan: dict[str, Any]) -> int:
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


def _name(node: dict[str, Any]) -> str:
    where = node.get("Index Name") or node.get("Relation Name") or ""
    return f"{node['Node Type']} {where} rows={node.get('Actual Rows')} loops={node.get('Actual Loops')}"
