"""The Interactions API (Omni models), as google-genai 3.6.1 speaks it (_gaos/types/interactions)."""

from __future__ import annotations

from typing import Any

from taskgate.handlers.video.wire import (
    Broken,
    Finished,
    HttpCall,
    Inputs,
    Media,
    Pending,
    State,
    object_of,
    put,
    video_of,
)

NOT_YET = {"queued", "in_progress", "idle", "requires_continuation"}
FIELDS = ("uri", "data", "mime_type")
"""Of a video."""


def part(kind: str, media: Media) -> dict[str, Any]:
    content = {"uri": media.uri} if media.uri else {"data": media.data}
    return {"type": kind, **content, "mime_type": media.mime}


class Interactions:
    def submission(self, inputs: Inputs, model: str) -> HttpCall:
        parts: list[dict[str, Any]] = [{"type": "text", "text": inputs.get("prompt")}]
        task = None
        if inputs.image is not None:
            parts.append(part("image", inputs.image))
            task = "image_to_video"
        for media, _ in inputs.reference_images:
            parts.append(part("image", media))
            task = "reference_to_video"
        if inputs.video is not None:
            parts.append(part("video", inputs.video))
            task = "extend"
        wanted: dict[str, Any] = {"type": "video"}
        put(wanted, "aspect_ratio", inputs.get("aspect_ratio"))
        put(wanted, "resolution", inputs.get("resolution"))
        seconds = inputs.get("duration_seconds")
        put(wanted, "duration", None if seconds is None else f"{seconds}s")
        if inputs.get("storage_uri"):
            wanted |= {"delivery": "uri", "gcs_uri": inputs.get("storage_uri")}
        config: dict[str, Any] = {}
        put(config, "seed", inputs.get("seed"))
        put(config, "video_config", task and {"task": task})
        body: dict[str, Any] = {
            "model": model,
            "background": True,
            "input": inputs.get("prompt") if len(parts) == 1 else [{"type": "user_input", "content": parts}],
            "response_format": wanted,
        }
        if config:
            body["generation_config"] = config
        return HttpCall("POST", "/v1/interactions", body)

    def operation(self, body: Any) -> str | None:
        name = body.get("id") if isinstance(body, dict) else None
        return name if isinstance(name, str) and name else None

    def poll(self, name: str) -> HttpCall:
        return HttpCall("GET", f"/v1/interactions/{name}?stream=false")

    def state(self, body: Any) -> State:
        interaction = object_of(body)
        status = interaction.get("status")
        if not isinstance(status, str):
            raise ValueError("the answer is no interaction: it has no status")
        if status in NOT_YET:
            return Pending()
        if status != "completed":
            return Broken(1 if status == "cancelled" else None, f"{status}: {_errors(interaction) or 'no words'}")
        contents = [content for step in _list(interaction, "steps") for content in _list(step, "content")]
        videos = [video_of(content, *FIELDS) for content in contents if content.get("type") == "video"]
        if not any(videos) and isinstance(interaction.get("output_video"), dict):
            videos = [video_of(interaction["output_video"], *FIELDS)]
        found = [video for video in videos if video is not None]
        words = [str(each["text"]) for each in contents if each.get("type") == "text" and each.get("text")]
        refused = [] if found else [*words, *filter(None, [_errors(interaction)])]
        return Finished(found, 0, refused, interaction.get("usage"))

    def cancel(self, name: str) -> HttpCall:
        return HttpCall("POST", f"/v1/interactions/{name}/cancel")


def _list(value: Any, name: str) -> list[dict[str, Any]]:
    found = value.get(name)
    if name == "content" and value.get("type") == "user_input":
        return []  # the task's own words and media
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _errors(interaction: Any) -> str:
    own = interaction.get("error")
    errors = [*(_list(interaction, "errors")), *([own] if isinstance(own, dict) else [])]
    errors += [step["error"] for step in _list(interaction, "steps") if isinstance(step.get("error"), dict)]
    return "; ".join(str(each.get("message") or each.get("code") or each) for each in errors)
