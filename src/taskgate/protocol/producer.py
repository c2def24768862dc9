"""The enqueue call for one task, as a statement for any driver's way of naming parameters."""

from __future__ import annotations

from taskgate.protocol.version import function_schema


def enqueue_statement(schema: str, placeholders: dict[str, str]) -> str:
    """SELECT of (task_id, outcome) from functions/enqueue.sql; `placeholders` are those of its parameters, by name.

    Every value is cast, so that drivers which bind without types can be used.
    """
    p = placeholders
    return (
        f"SELECT task_id, outcome FROM {function_schema(schema)}.enqueue("
        f"ARRAY[CAST({p['task_id']} AS text)], ARRAY[CAST({p['task_type']} AS text)], "
        f"ARRAY[CAST({p['request']} AS text)], ARRAY[CAST({p['keep_order']} AS boolean)], "
        f"ARRAY[CAST({p['options']} AS text)], CAST({p['tenant']} AS text), CAST({p['traceparent']} AS text))"
    )


def enqueue_once_statement(schema: str, placeholders: dict[str, str]) -> str:
    """SELECT of (task_id, outcome) from functions/enqueue_once.sql; `placeholders` as for `enqueue_statement`."""
    p = placeholders
    return (
        f"SELECT task_id, outcome FROM {function_schema(schema)}.enqueue_once("
        f"CAST({p['idempotency_key']} AS text), CAST({p['fingerprint']} AS text), "
        f"CAST({p['task_id']} AS text), CAST({p['task_type']} AS text), "
        f"CAST({p['request']} AS text), CAST({p['keep_order']} AS boolean), "
        f"CAST({p['options']} AS text), CAST({p['tenant']} AS text), CAST({p['traceparent']} AS text))"
    )
