"""Gemini long-running operations: `:predictLongRunning`, as google-genai 2.34.0 speaks it (models.py, operations.py).

Google retired Veo here in 2026; relays and mocks go on speaking it.
"""

from __future__ import annotations

from typing import Any

from taskgate.handlers.video.wire import (
    Finished,
    HttpCall,
    Inputs,
    Media,
    Pending,
    State,
    Video,
    count_of,
    long_running,
    put,
    texts,
)


def image(media: Media) -> dict[str, Any]:
    return {"bytesBase64Encoded": media.data, "mimeType": media.mime}


def parameters(inputs: Inputs) -> dict[str, Any]:
    """What both `:predictLongRunning` APIs take."""
    found: dict[str, Any] = {}
    put(found, "sampleCount", inputs.get("sample_count"))
    put(found, "durationSeconds", inputs.get("duration_seconds"))
    put(found, "aspectRatio", inputs.get("aspect_ratio"))
    put(found, "resolution", inputs.get("resolution"))
    put(found, "personGeneration", inputs.get("person_generation"))
    put(found, "negativePrompt", inputs.get("negative_prompt"))
    put(found, "enhancePrompt", inputs.get("enhance_prompt"))
    return found


class Gemini:
    def submission(self, inputs: Inputs, model: str) -> HttpCall:
        instance: dict[str, Any] = {"prompt": inputs.get("prompt")}
        put(instance, "image", inputs.image and image(inputs.image))
        put(instance, "lastFrame", inputs.last_frame and image(inputs.last_frame))
        if inputs.reference_images:
            instance["referenceImages"] = [
                {"image": image(media), "referenceType": kind.upper()} for media, kind in inputs.reference_images
            ]
        if inputs.video is not None:
            video = inputs.video
            instance["video"] = (
                {"uri": video.uri} if video.uri else {"encodedVideo": video.data, "encoding": video.mime}
            )
        body: dict[str, Any] = {"instances": [instance]}
        if found := parameters(inputs):
            body["parameters"] = found
        return HttpCall("POST", f"/v1beta/models/{model}:predictLongRunning", body)

    def operation(self, body: Any) -> str | None:
        name = body.get("name") if isinstance(body, dict) else None
        return name if isinstance(name, str) and name else None

    def poll(self, name: str) -> HttpCall:
        return HttpCall("GET", f"/v1beta/{name}")

    def state(self, body: Any) -> State:
        response, error = long_running(body)
        if error is not None:
            return error
        if response is None:
            return Pending()
        answer = response.get("generateVideoResponse")
        answer = answer if isinstance(answer, dict) else {}
        videos = []
        for sample in answer.get("generatedSamples") or ():
            video = sample.get("video") if isinstance(sample, dict) else None
            if isinstance(video, dict) and (video.get("uri") or video.get("encodedVideo")):
                mime = video.get("encoding") or "video/mp4"
                videos.append(Video(str(video.get("uri") or ""), str(video.get("encodedVideo") or ""), str(mime)))
        return Finished(
            videos, count_of(answer.get("raiMediaFilteredCount")), texts(answer.get("raiMediaFilteredReasons"))
        )

    def cancel(self, name: str) -> HttpCall:
        return HttpCall("POST", f"/v1beta/{name}:cancel", {})
