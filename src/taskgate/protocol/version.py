"""Which schemas this program works with, and where its functions live."""

from __future__ import annotations

SCHEMA_VERSION = 1
"""What `taskgate migrate` of this version brings a database to."""

OLDEST_SCHEMA, NEWEST_SCHEMA = 1, 1
"""The range that this version's API and workers work with."""


class SchemaMismatch(Exception):
    """The database is not migrated, or to a version outside this program's range."""


def function_schema(table_schema: str) -> str:
    """The schema of the functions: `taskgate` for tables in `public`, else `taskgate_<schema>`."""
    return "taskgate" if table_schema == "public" else f"taskgate_{table_schema}"


def check_version(version: int | None) -> None:
    """Raises SchemaMismatch, with the remedy, unless `version` is in this program's range."""
    if not version:
        raise SchemaMismatch("the database has no taskgate schema: run `taskgate migrate`")
    if version < OLDEST_SCHEMA:
        raise SchemaMismatch(
            f"the database has schema version {version}, this program needs {OLDEST_SCHEMA} or newer:"
            " run `taskgate migrate`"
        )
    if version > NEWEST_SCHEMA:
        raise SchemaMismatch(
            f"the database has schema version {version}, this program knows {NEWEST_SCHEMA} at most: upgrade taskgate"
        )
