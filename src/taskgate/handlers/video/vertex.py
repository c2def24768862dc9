"""Vertex AI: `:predictLongRunning` and `:fetchPredictOperation`, as google-genai 3.6.1 speaks it."""

from __future__ import annotations

from typing import Any

from taskgate.handlers.video.long_running import finished, inline_image, parameters, request_body, response_of
from taskgate.handlers.video.wire import HttpCall, Inputs, Media, Pending, State, put, video_of


def medium(media: Media) -> dict[str, Any]:
    return {"gcsUri": media.uri, "mimeType": media.mime} if media.uri else inline_image(media)


class Vertex:
    """With a project and a location, or (an API key in express mode) without."""

    def __init__(self, project: str = "", location: str = "") -> None:
        self._place = f"projects/{project}/locations/{location}/" if project else ""

    def submission(self, inputs: Inputs, model: str) -> HttpCall:
        found = parameters(inputs)
        put(found, "storageUri", inputs.get("storage_uri"))
        put(found, "fps", inputs.get("fps"))
        put(found, "seed", inputs.get("seed"))
        put(found, "generateAudio", inputs.get("generate_audio"))
        for name, key in (("compression_quality", "compressionQuality"), ("resize_mode", "resizeMode")):
            put(found, key, inputs.get(name) and inputs.get(name).upper())
        body = request_body(inputs, found, medium, medium)
        return HttpCall("POST", f"/v1beta1/{self._place}publishers/google/models/{model}:predictLongRunning", body)

    def operation(self, body: Any) -> str | None:
        name = body.get("name") if isinstance(body, dict) else None
        return name if isinstance(name, str) and "/operations/" in name else None

    def poll(self, name: str) -> HttpCall:
        resource = name.partition("/operations/")[0]
        return HttpCall("POST", f"/v1beta1/{resource}:fetchPredictOperation", {"operationName": name})

    def state(self, body: Any) -> State:
        response, error = response_of(body)
        if error is not None:
            return error
        if response is None:
            return Pending()
        found = [video_of(each, "gcsUri", "bytesBase64Encoded", "mimeType") for each in response.get("videos") or ()]
        return finished([video for video in found if video is not None], response)

    def cancel(self, name: str) -> HttpCall:
        return HttpCall("POST", f"/v1beta1/{name}:cancel", {})
