"""The fake provider's video operations, and how they look in an answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from taskgate.local.fake_provider.behaviour import Behaviour

DEFAULT_BYTES = 64 * 1024


@dataclass(slots=True)
class Operation:
    """A video that was asked for, and would be paid for."""

    id: str
    api: str
    model: str
    prompt: str
    behaviour: Behaviour
    name: str
    storage: str
    made_at: float
    polls: int = 0
    cancelled: bool = False

    @property
    def is_over(self) -> bool:
        waited = time.time() - self.made_at >= self.behaviour.seconds
        return self.cancelled or (waited and self.polls > self.behaviour.polls)


def mp4(operation: Operation) -> bytes:
    """The operation's video: an mp4 by its first bytes, and like no other's."""
    size = operation.behaviour.bytes or DEFAULT_BYTES
    start = b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom" + operation.id.encode() + b"\x00"
    return (start + bytes(range(256)) * (size // 256 + 1))[: max(size, len(start))]


def interaction(operation: Operation, status: str | None, videos: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    behaviour = operation.behaviour
    if status is None:
        status = "in_progress" if not operation.is_over else "cancelled" if operation.cancelled else "completed"
    found: dict[str, Any] = {"id": operation.id, "object": "interaction", "status": status, "model": operation.model}
    if status != "completed":
        return found
    if behaviour.operation_error is not None:
        return {**found, "status": "failed", "errors": [dict(behaviour.operation_error)]}
    content: list[dict[str, Any]] = list(videos or ())
    if behaviour.filtered:
        content = [{"type": "text", "text": behaviour.filtered}]
    usage = {"total_output_tokens": 5792, "total_tokens": 5800}
    return {**found, "steps": [{"type": "model_output", "content": content}], "usage": usage}


def prompt_of(api: str, body: Any) -> str:
    if api != "interactions":
        return str(body["instances"][0]["prompt"])
    given = body["input"]
    if isinstance(given, str):
        return given
    return "".join(part.get("text", "") for step in given for part in step["content"] if part["type"] == "text")
