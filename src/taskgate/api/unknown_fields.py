"""For the errors of a request's schema: which field an unknown one may have been meant as."""

from __future__ import annotations

from typing import Any

from taskgate.meant import meant


def field_hint(schema: Any, error: Any) -> str:
    """`; did you mean X by Y?`, or nothing. `error` is a jsonschema_rs.ValidationError of this schema.

    Fields are looked at where they are refused (additionalProperties), and where one that is required is missing.
    """
    given = error.instance if isinstance(error.instance, dict) else {}
    fields = _fields(schema, list(error.schema_path))
    strange = [name for name in given if name not in fields]
    missing = getattr(error.kind, "property", None)
    if isinstance(missing, str):
        pairs = [(name, missing) for name in strange if meant(name, fields) == missing]
    elif getattr(error.kind, "unexpected", None):
        pairs = [(name, found) for name in strange if (found := meant(name, fields)) and found not in given]
    else:
        return ""
    return f"; did you mean {', '.join(f'{found} by {name[:50]}' for name, found in pairs[:3])}?" if pairs else ""


def _fields(schema: Any, path: list[Any]) -> list[str]:
    """The properties of the object schema that `path` leads to with its last step, as far as it can be followed."""
    for step in path[:-1]:
        try:
            schema = schema[int(step) if isinstance(schema, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            return []
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties) if isinstance(properties, dict) else []
