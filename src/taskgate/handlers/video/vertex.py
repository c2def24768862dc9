"""Vertex AI: `:predictLongRunning` and `:fetchPredictOperation`, as google-genai 3.6.1 speaks it."""

from __future__ import annotations

from typing import Any

from taskgate.handlers.video.gemini import image, parameters
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


def medium(media: Media) -> dict[str, Any]:
    return {"gcsUri": media.uri, "mimeType": media.mime} if media.uri else image(media)


class Vertex:
    """With a project and a location, or (an API key in express mode) without."""

    def __init__(self, project: str = "", location: str = "") -> None:
        self._place = f"projects/{project}/locations/{location}/" if project else ""

    def submission(self, inputs: Inputs, model: str) -> HttpCall:
        instance: dict[str, Any] = {"prompt": inputs.get("prompt")}
        put(instance, "image", inputs.image and medium(inputs.image))
        put(instance, "lastFrame", inputs.last_frame and medium(inputs.last_frame))
        if inputs.reference_images:
            instance["referenceImages"] = [
                {"image": medium(media), "referenceType": kind.upper()} for media, kind in inputs.reference_images
            ]
        put(instance, "video", inputs.video and medium(inputs.video))
        found = parameters(inputs)
        put(found, "storageUri", inputs.get("storage_uri"))
        put(found, "fps", inputs.get("fps"))
        put(found, "seed", inputs.get("seed"))
        put(found, "generateAudio", inputs.get("generate_audio"))
        for name, key in (("compression_quality", "compressionQuality"), ("resize_mode", "resizeMode")):
            put(found, key, inputs.get(name) and inputs.get(name).upper())
        body: dict[str, Any] = {"instances": [instance]}
        if found:
            body["parameters"] = found
        return HttpCall("POST", f"/v1beta1/{self._place}publishers/google/models/{model}:predictLongRunning", body)

    def operation(self, body: Any) -> str | None:
        name = body.get("name") if isinstance(body, dict) else None
        return name if isinstance(name, str) and "/operations/" in name else None

    def poll(self, name: str) -> HttpCall:
        resource = name.partition("/operations/")[0]
        return HttpCall("POST", f"/v1beta1/{resource}:fetchPredictOperation", {"operationName": name})

    def state(self, body: Any) -> State:
        response, error = long_running(body)
        if error is not None:
            return error
        if response is None:
            return Pending()
        videos = []
        for video in response.get("videos") or ():
            if isinstance(video, dict) and (video.get("gcsUri") or video.get("bytesBase64Encoded")):
                mime = video.get("mimeType") or "video/mp4"
                videos.append(
                    Video(str(video.get("gcsUri") or ""), str(video.get("bytesBase64Encoded") or ""), str(mime))
                )
        return Finished(
            videos, count_of(response.get("raiMediaFilteredCount")), texts(response.get("raiMediaFilteredReasons"))
        )

    def cancel(self, name: str) -> HttpCall:
        return HttpCall("POST", f"/v1beta1/{name}:cancel", {})
