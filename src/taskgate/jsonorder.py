"""Whether jsonb keeps a value's key order: the order of properties in a JSON Schema steers a model.

jsonb stores the keys of an object by length in bytes, then by bytes
(https://www.postgresql.org/docs/current/datatype-json.html, 8.14.4: object field order is not preserved).
"""

from __future__ import annotations

from typing import Any


def keeps_order(value: Any) -> bool:
    """True when every object in this parsed JSON value has its keys in the order jsonb gives them.

    A request for which it is False is enqueued with `keep_order`. Only the order of keys is looked at: not
    how numbers were written, nor keys that were doubled in the text. Any depth; no error is raised.
    """
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            last_length, last = -1, b""
            for key, inner in item.items():
                raw = key.encode("utf-8", "surrogatepass")
                length = len(raw)
                if length < last_length or (length == last_length and raw <= last):
                    return False
                last_length, last = length, raw
                if isinstance(inner, (dict, list, tuple)):
                    pending.append(inner)
        elif isinstance(item, (list, tuple)):
            pending.extend(inner for inner in item if isinstance(inner, (dict, list, tuple)))
    return True
