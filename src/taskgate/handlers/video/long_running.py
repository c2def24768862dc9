"""What Gemini's and Vertex's `:predictLongRunning` have in common: the request, and a google.longrunning.Operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskgate.handlers.video.wire import Broken, Finished, Inputs, Media, Video, object_of, put


def inline_image(media: Media) -> dict[str, Any]:
    return {"bytesBase64Encoded": media.data, "mimeType": media.mime}


def parameters(inputs: Inputs) -> dict[str, Any]:
    """Those that both take."""
    found: dict[str, Any] = {}
    put(found, "sampleCount", inputs.get("sample_count"))
    put(found, "durationSeconds", inputs.get("duration_seconds"))
    put(found, "aspectRatio", inputs.get("aspect_ratio"))
    put(found, "resolution", inputs.get("resolution"))
    put(found, "personGeneration", inputs.get("person_generation"))
    put(found, "negativePrompt", inputs.get("negative_prompt"))
    put(found, "enhancePrompt", inputs.get("enhance_prompt"))
    return found


def request_body(
    inputs: Inputs,
    parameters: Mapping[str, Any],
    image: Callable[[Media], dict[str, Any]],
    video: Callable[[Media], dict[str, Any]],
) -> dict[str, Any]:
    """`image` and `video` spell a medium as the API wants it."""
    instance: dict[str, Any] = {"prompt": inputs.get("prompt")}
    put(instance, "image", inputs.image and image(inputs.image))
    put(instance, "lastFrame", inputs.last_frame and image(inputs.last_frame))
    if inputs.reference_images:
        instance["referenceImages"] = [
            {"image": image(media), "referenceType": kind.upper()} for media, kind in inputs.reference_images
        ]
    put(instance, "video", inputs.video and video(inputs.video))
    return {"instances": [instance], **({"parameters": parameters} if parameters else {})}


def response_of(body: Any) -> tuple[Mapping[str, Any] | None, Broken | None]:
    """The response of an operation, or its error; neither while it runs."""
    operation = object_of(body)
    if not isinstance(operation.get("name"), str) and "done" not in operation:
        raise ValueError("the answer is no operation")
    error = operation.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        return None, Broken(code if isinstance(code, int) else None, str(error.get("message") or "no words"))
    if operation.get("done") is not True:
        return None, None
    response = operation.get("response")
    return (response if isinstance(response, dict) else {}), None


def finished(videos: Sequence[Video], answer: Mapping[str, Any]) -> Finished:
    """With what the answer says of videos that were kept back."""
    count, reasons = answer.get("raiMediaFilteredCount"), answer.get("raiMediaFilteredReasons")
    return Finished(
        videos,
        count if isinstance(count, int) and not isinstance(count, bool) else 0,
        [each for each in reasons if isinstance(each, str)] if isinstance(reasons, list) else [],
    )
