"""Runs the cases against an API at a base URL, on a plain HTTP connection."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conformance.http.matching import mismatch, value_at

CASES = Path(__file__).parent / "cases"
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Case:
    """One named sequence of requests and expectations."""

    file: str
    name: str
    steps: list[dict[str, Any]]
    keys: bool
    """Needs the keys `a`, `b` (two tenants) and `admin`."""

    @property
    def id(self) -> str:
        return f"{self.file}: {self.name}"


@dataclass
class Target:
    """Where the API is, and its keys by the names that cases use."""

    url: str
    keys: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0


def load_cases() -> Iterator[Case]:
    for path in sorted(CASES.glob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            uses_keys = any("as" in step for step in case["steps"])
            yield Case(path.stem, case["name"], case["steps"], uses_keys)


def run(case: Case, target: Target) -> str | None:
    """None when the API does what the case says, else the step and what was wrong with it."""
    variables = {"unique": uuid.uuid4().hex}
    for number, step in enumerate(case.steps, 1):
        wrong = _step(_filled(step, variables), target, variables)
        if wrong is not None:
            return f"step {number} ({step['request']['method']} {step['request']['path']}): {wrong}"
    return None


def _step(step: dict[str, Any], target: Target, variables: dict[str, str]) -> str | None:
    request, expected = step["request"], step["expect"]
    headers = {"Connection": "close", **request.get("headers", {})}
    if "as" in step:
        headers["Authorization"] = f"Bearer {target.keys[step['as']]}"
    body = _body(request)
    if "json" in request:
        headers.setdefault("Content-Type", "application/json")
    status, answer_headers, raw = exchange(target, request["method"], request["path"], headers, body)
    shown = raw[:500].decode("utf-8", "replace")
    if status != expected["status"]:
        return f"status {status} instead of {expected['status']}: {shown}"
    for name, pattern in expected.get("headers", {}).items():
        if re.search(pattern, answer_headers.get(name, "")) is None:
            return f"header {name}: {answer_headers.get(name)!r} does not match {pattern!r}"
    if "json" not in expected and "save" not in expected:
        return None
    try:
        document = json.loads(raw)
    except ValueError:
        return f"the answer is no JSON: {shown}"
    wrong = mismatch(expected.get("json", {"$any": True}), document)
    if wrong is not None:
        return f"{wrong}. Answer: {shown}"
    for name, pointer in expected.get("save", {}).items():
        variables[name] = str(value_at(document, pointer))
    return None


def exchange(
    target: Target, method: str, path: str, headers: Mapping[str, str], body: bytes | None
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own. Raises OSError or http.client.HTTPException."""
    parts = urlsplit(target.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=target.timeout)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before the body's end
            connection.request(method, parts.path.rstrip("/") + path, body, dict(headers))
        response = connection.getresponse()
        raw = response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, raw
    finally:
        connection.close()


def _body(request: dict[str, Any]) -> bytes | None:
    if "json" in request:
        return json.dumps(request["json"], ensure_ascii=False).encode()
    if "hex" in request:
        return bytes.fromhex(request["hex"])
    if "text" in request:
        text = request["text"]
        parts = text if isinstance(text, list) else [text]
        return "".join(part if isinstance(part, str) else part["repeat"] * part["times"] for part in parts).encode()
    return None


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), value)
    if isinstance(value, dict):
        return {key: _filled(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    return value
