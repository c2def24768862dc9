"""The request of an `llm` task: what is checked before it is stored, and the messages it becomes.

Two forms: `{"prompt", "images"?, "system"?, "model"?, …}` or `{"messages", "model"?, …}`. Every other key is a
Chat Completions parameter and reaches the provider unchanged, in the caller's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_IMAGES = 100


def _image(value: str) -> str:
    if value.startswith("data:"):
        if not value[:100].lower().startswith("data:image/") or ";base64," not in value[:200]:
            raise PydanticCustomError("image", "a data URI must look like data:image/png;base64,…")
        return value
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        known = False
    if not known:
        raise PydanticCustomError("image", "an image is an http or https URL, or a data: URI")
    return value


def _not_streamed(value: Any) -> Any:
    if value is not False and value is not None:
        raise PydanticCustomError(
            "stream",
            "a task is not streamed: leave stream out, and read the result with GET /tasks/{task_id}?wait=30",
        )
    return value


def _content(value: Any) -> Any:
    parts = value if isinstance(value, list) else []
    if not isinstance(value, str | list | None) or not all(isinstance(part, dict) for part in parts):
        raise PydanticCustomError("content", "content is a string, or a list of parts, each an object")
    return value


class Message(BaseModel):
    """A message of a conversation. What else it holds is the provider's to judge."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str = Field(min_length=1, examples=["user"])
    content: Annotated[Any, AfterValidator(_content)] = None


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, title="LlmRequest")

    prompt: str | None = Field(None, min_length=1, description="The user's words; or give messages.")
    images: list[Annotated[str, AfterValidator(_image)]] | None = Field(
        None, max_length=MAX_IMAGES, description="URLs or data: URIs of PNG, JPEG, GIF or WebP images."
    )
    system: str | None = Field(None, min_length=1, description="The system message that goes before the prompt.")
    messages: list[Message] | None = Field(
        None, min_length=1, description="Chat Completions messages, instead of prompt, images and system."
    )
    model: str | None = Field(None, min_length=1, description="The provider's model; else the worker's own.")
    n: int | None = Field(None, ge=1, le=128, description="How many answers; `choices` has them all.")
    stream: Annotated[bool | None, BeforeValidator(_not_streamed)] = Field(
        None, description="Must not be true: a task is not streamed."
    )


def check(request: dict[str, Any]) -> dict[str, Any]:
    """The request as it came. Raises pydantic.ValidationError, each error with the place of the wrong field."""
    problems: list[InitErrorDetails] = []

    def wrong(place: str | None, kind: str, words: str) -> None:
        error = PydanticCustomError(kind, words)
        problems.append(InitErrorDetails(type=error, loc=(place,) if place else (), input=request.get(place or "")))

    prompt, messages = request.get("prompt"), request.get("messages")
    if prompt is None and messages is None:
        wrong(None, "missing", f"give either prompt or messages{_given(request)}")
    if prompt is not None and messages is not None:
        wrong("prompt", "conflict", "give either prompt or messages, not both")
    if messages is not None:
        for name in ("images", "system"):
            if request.get(name) is not None:
                wrong(name, "conflict", f"{name} goes with prompt; with messages, put it into the messages")
    if isinstance(prompt, str) and prompt and not prompt.strip():
        wrong("prompt", "blank", "prompt must hold more than blanks")
    try:
        _Fields.model_validate(request)
    except ValidationError as error:
        problems += [_detail(each) for each in error.errors(include_url=False)]
    if problems:
        raise ValidationError.from_exception_data("LlmRequest", problems, hide_input=True)
    return request


def _given(request: Mapping[str, Any]) -> str:
    """Which keys were there instead, and what they may have been meant as."""
    keys = [key for key, value in request.items() if value is not None]
    if not keys:
        return ""
    named = ", ".join(key[:50] for key in keys[:10]) + (", …" if len(keys) > 10 else "")
    meant = [(key, word) for key in keys[:10] for word in get_close_matches(key[:50], ("prompt", "messages"), 1, 0.75)]
    hint = f"; did you mean {meant[0][1]} by {meant[0][0][:50]}?" if meant else ""
    return f"; there is only {named}{hint}"


def _detail(error: Any) -> InitErrorDetails:
    # as a custom error, for a known one would want its context again
    return InitErrorDetails(
        type=PydanticCustomError(error["type"], error["msg"]),
        loc=error["loc"],
        input=error["input"],
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the request, for the API's documentation; without references, so that it fits anywhere."""
    text = {"type": "string", "minLength": 1}
    part = {"type": "object", "additionalProperties": True}
    message = {
        "type": "object",
        "properties": {
            "role": {**text, "examples": ["user"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": part}, {"type": "null"}]},
        },
        "required": ["role"],
        "additionalProperties": True,
    }
    described = {name: field.description for name, field in _Fields.model_fields.items()}
    kinds: dict[str, dict[str, Any]] = {
        "prompt": {**text, "pattern": r"\S"},
        "images": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^(https?://[^\s/]|data:image/[a-z0-9.+-]+;base64,)"},
            "maxItems": MAX_IMAGES,
        },
        "system": text,
        "messages": {"type": "array", "items": message, "minItems": 1},
        "model": text,
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "stream": {"const": False},
    }
    with_messages = {
        "required": ["messages"],
        "properties": dict.fromkeys(("prompt", "images", "system"), False),
    }
    return {
        "title": "LlmRequest",
        "type": "object",
        "properties": {name: {**kind, "description": described[name]} for name, kind in kinds.items()},
        "oneOf": [{"required": ["prompt"], "properties": {"messages": False}}, with_messages],
        "additionalProperties": True,
        "examples": [
            {"prompt": "What is the capital of France?"},
            {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0},
        ],
    }


LlmRequest = Annotated[dict[str, Any], AfterValidator(check), WithJsonSchema(json_schema())]
"""A request of either form, as a plain dict: its own order is kept, and nothing is added or taken away."""


def to_chat(request: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The messages, and every further parameter, of a checked request. The request is not changed."""
    own = ("prompt", "images", "system", "messages", "model", "stream")
    parameters = {name: value for name, value in request.items() if name not in own}
    if request.get("messages") is not None:
        return list(request["messages"]), parameters
    messages: list[Any] = []
    if request.get("system") is not None:
        messages.append({"role": "system", "content": request["system"]})
    images = request.get("images") or []
    content: Any = request["prompt"]
    if images:
        content = [{"type": "text", "text": content}]
        content += [{"type": "image_url", "image_url": {"url": url}} for url in images]
    messages.append({"role": "user", "content": content})
    return messages, parameters
