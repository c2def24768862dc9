"""The bodies of the fake provider's answers, in the shape of OpenAI's Chat Completions API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from taskgate.local.fake_provider.behaviour import Behaviour

MODEL = "fake-echo"


def prompt_of(body: dict[str, Any]) -> tuple[str, str, int]:
    """All text of the messages, the text of the last message of the user, and the number of images."""
    texts: list[str] = []
    last, images = "", 0
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        text = content if isinstance(content, str) else ""
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                text += part["text"] if isinstance(part.get("text"), str) else ""
                images += part.get("type") == "image_url"
        texts.append(text)
        if isinstance(message, dict) and message.get("role") == "user":
            last = text
    return "\n".join(texts), last, images


def text_of(behaviour: Behaviour, body: dict[str, Any], prompt: str, images: int) -> str:
    if behaviour.ok is not None:
        return behaviour.ok
    if behaviour.bytes:
        return "x" * behaviour.bytes
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        schema = (wanted.get("json_schema") or {}).get("schema")
        return json.dumps(sample(schema, prompt[:100]), ensure_ascii=False)
    seen = f" (with {images} image{'s' if images > 1 else ''})" if images else ""
    return f"Fake answer to: {prompt[:500]}{seen}"


def sample(schema: Any, text: str, depth: int = 0) -> Any:
    """A value that a simple JSON Schema describes, its properties in the schema's own order."""
    if not isinstance(schema, dict) or depth > 20:
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: sample(each, text, depth + 1) for name, each in properties.items()}
    if kind == "array":
        return [sample(schema.get("items"), text, depth + 1)]
    return {"string": text, "integer": 1, "number": 1.5, "boolean": True}.get(str(kind))


def completion(behaviour: Behaviour, body: dict[str, Any], number: int, text: str, asked: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        **(behaviour.reply or {}),
    }
    count = body.get("n")
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": behaviour.finish_reason}
        for index in range(count if isinstance(count, int) and 0 < count <= 128 else 1)
    ]
    return {
        "id": f"chatcmpl-fake-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model_of(body),
        "choices": choices if behaviour.choices else [],
        "usage": usage(asked, text),
        "system_fingerprint": "fake",
    }


def chunks(behaviour: Behaviour, body: dict[str, Any], number: int, text: str, asked: str) -> Iterator[bytes]:
    """The answer as server-sent events, a word a chunk."""
    head = {
        "id": f"chatcmpl-fake-{number}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model_of(body),
    }

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: " + dump({**head, "choices": [choice]}) + b"\n\n"

    yield event({"role": "assistant", "content": "", **(behaviour.reply or {})})
    for word in text.split(" "):
        yield event({"content": word + " "})
    if behaviour.finish_reason is not None:
        yield event({}, behaviour.finish_reason)
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield b"data: " + dump({**head, "choices": [], "usage": usage(asked, text)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def usage(asked: str, text: str) -> dict[str, int]:
    """Tokens, counted as words."""
    prompt, answer = len(asked.split()), len(text.split())
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def error(behaviour: Behaviour) -> dict[str, Any]:
    words = behaviour.message or f"This is the fake provider's {behaviour.name}."
    body: dict[str, Any] = {
        "message": words,
        "type": behaviour.error_type,
        "param": None,
        "code": behaviour.error_code,
    }
    if behaviour.retry_delay is not None:
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": behaviour.retry_delay}
        body["details"] = [info]
    return {"error": body}


def models(extra: str = MODEL) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [{"id": extra, "object": "model", "created": 1735689600, "owned_by": "taskgate"}],
    }


def model_of(body: dict[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) and model else MODEL


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
