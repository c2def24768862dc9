"""Gemini long-running operations: `:predictLongRunning`, as google-genai 2.34.0 speaks it (models.py, operations.py).

Google retired Veo here in 2026; relays and mocks go on speaking it.
"""

from __future__ import annotations

from typing import Any

from taskgate.handlers.video.long_running import finished, inline_image, parameters, request_body, response_of
from taskgate.handlers.video.wire import HttpCall, Inputs, Media, Pending, State, video_of


def video_part(media: Media) -> dict[str, Any]:
    return {"uri": media.uri} if media.uri else {"encodedVideo": media.data, "encoding": media.mime}


class Gemini:
    def submission(self, inputs: Inputs, model: str) -> HttpCall:
        body = request_body(inputs, parameters(inputs), inline_image, video_part)
        return HttpCall("POST", f"/v1beta/models/{model}:predictLongRunning", body)

    def operation(self, body: Any) -> str | None:
        name = body.get("name") if isinstance(body, dict) else None
        return name if isinstance(name, str) and name else None

    def poll(self, name: str) -> HttpCall:
        return HttpCall("GET", f"/v1beta/{name}")

    def state(self, body: Any) -> State:
        response, error = response_of(body)
        if error is not None:
            return error
        if response is None:
            return Pending()
        answer = response.get("generateVideoResponse")
        answer = answer if isinstance(answer, dict) else {}
        samples = [each for each in answer.get("generatedSamples") or () if isinstance(each, dict)]
        videos = [video_of(each.get("video"), "uri", "encodedVideo", "encoding") for each in samples]
        return finished([video for video in videos if video is not None], answer)

    def cancel(self, name: str) -> HttpCall:
        return HttpCall("POST", f"/v1beta/{name}:cancel", {})
