"""Records what google-genai sends for the videos of tests/handlers/genai/*.json, which hold our own requests to it.

    python -m venv G2 && G2/bin/pip install google-genai==2.34.0    # the last that speaks Gemini operations with a key
    python -m venv G3 && G3/bin/pip install 'google-genai>=3'
    G2/bin/python scripts/record_genai.py gemini
    G3/bin/python scripts/record_genai.py vertex interactions

Each file has the version, and a list of cases: our request of a `veo` task, and the HTTP calls of the SDK.
"""

from __future__ import annotations

import base64
import http.server
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent.parent / "tests" / "handlers" / "genai"
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01"
MP4 = b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom"
PNG_URI = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
MP4_URI = f"data:video/mp4;base64,{base64.b64encode(MP4).decode()}"
VERTEX_OPERATION = "projects/p/locations/us-central1/publishers/google/models/veo-3.1-generate-001/operations/op1"


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers every call as the provider would, and keeps it."""

    sent: list[dict[str, Any]] = []  # noqa: RUF012

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        call = {"method": self.command, "path": self.path, "body": json.loads(body) if body else None}
        call["auth"] = "key" if self.headers.get("x-goog-api-key") else "bearer"
        Recorder.sent.append(call)
        if "interactions" in self.path:
            answer: dict[str, Any] = {"id": "int1", "status": "in_progress", "model": "m", "steps": []}
        elif self.path.startswith("/v1beta1/"):
            answer = {"name": VERTEX_OPERATION}
        else:
            answer = {"name": "models/veo-3.1-generate-preview/operations/op1"}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST


def gemini(url: str) -> tuple[list[Any], Callable[[Any], Any]]:
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="KEY", http_options=types.HttpOptions(base_url=url))
    return _operations(client, "veo-3.1-generate-preview", types, vertex=False)


def vertex(url: str) -> tuple[list[Any], Callable[[Any], Any]]:
    from google import genai
    from google.genai import types
    from google.oauth2.credentials import Credentials

    client = genai.Client(
        vertexai=True,
        project="p",
        location="us-central1",
        credentials=Credentials("TOKEN"),
        http_options=types.HttpOptions(base_url=url),
    )
    return _operations(client, "veo-3.1-generate-001", types, vertex=True)


def _operations(client: Any, model: str, types: Any, *, vertex: bool) -> tuple[list[Any], Callable[[Any], Any]]:
    image = types.Image(image_bytes=PNG, mime_type="image/png")

    def reference(kind: str) -> Any:
        return types.VideoGenerationReferenceImage(image=image, reference_type=kind)

    all_of_it = {
        "aspect_ratio": "16:9", "duration_seconds": 8, "resolution": "1080p", "negative_prompt": "rain",
        "person_generation": "allow_adult", "sample_count": 2, "enhance_prompt": True,
    }  # fmt: skip
    kind = "style" if vertex else "asset"
    theirs = {**all_of_it, "number_of_videos": 2}
    del theirs["sample_count"]
    cases: list[Any] = [
        ({"prompt": "A cat"}, {}, {}),
        ({"prompt": "A cat", **all_of_it}, {}, theirs),
        ({"prompt": "A cat", "image": PNG_URI, "last_frame": PNG_URI}, {"image": image}, {"last_frame": image}),
        (
            {"prompt": "A cat", "reference_images": [PNG_URI, {"image": PNG_URI, "type": kind}]},
            {},
            {"reference_images": [reference("ASSET"), reference(kind.upper())]},
        ),
        ({"prompt": "More", "video": MP4_URI}, {"video": types.Video(video_bytes=MP4, mime_type="video/mp4")}, {}),
    ]
    if vertex:
        extra = {"seed": 7, "generate_audio": False, "fps": 24}
        cases += [
            ({"prompt": "A cat", **extra}, {}, extra),
            (
                {"prompt": "A cat", "compression_quality": "lossless", "resize_mode": "pad", "storage_uri": "gs://b/o"},
                {},
                {"compression_quality": "LOSSLESS", "resize_mode": "PAD", "output_gcs_uri": "gs://b/o"},
            ),
            (
                {"prompt": "A cat", "image": "gs://b/i.png"},
                {"image": types.Image(gcs_uri="gs://b/i.png", mime_type="image/png")},
                {},
            ),
            (
                {"prompt": "More", "video": "gs://b/v.mp4"},
                {"video": types.Video(uri="gs://b/v.mp4", mime_type="video/mp4")},
                {},
            ),
        ]
    else:
        uri = "${base}/v1beta/files/v1:download?alt=media"
        cases.append(({"prompt": "More", "video": uri}, {"video": types.Video(uri=uri)}, {}))

    def run(case: Any) -> Any:
        request, source, config = case
        asked = types.GenerateVideosSource(prompt=request["prompt"], **source)
        operation = client.models.generate_videos(
            model=model, source=asked, config=types.GenerateVideosConfig(**config)
        )
        client.operations.get(operation)
        return {"request": {**request, "model": model}}

    return cases, run


def interactions(url: str) -> tuple[list[Any], Callable[[Any], Any]]:
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="KEY", http_options=types.HttpOptions(base_url=url))
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
    video = {"type": "video", "data": base64.b64encode(MP4).decode(), "mime_type": "video/mp4"}
    gs_image = {"type": "image", "uri": "gs://b/i.png", "mime_type": "image/png"}

    def words(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text}

    def task(name: str) -> dict[str, Any]:
        return {"video_config": {"task": name}}

    cases: list[Any] = [
        ({"prompt": "A cat"}, "A cat", {}, None),
        (
            {"prompt": "A cat", "aspect_ratio": "9:16", "duration_seconds": 8, "resolution": "720p", "seed": 7},
            "A cat",
            {"aspect_ratio": "9:16", "duration": "8s", "resolution": "720p"},
            {"seed": 7},
        ),
        ({"prompt": "A cat", "image": PNG_URI}, [words("A cat"), image], {}, task("image_to_video")),
        (
            {"prompt": "A cat", "reference_images": [PNG_URI, "gs://b/i.png"]},
            [words("A cat"), image, gs_image],
            {},
            task("reference_to_video"),
        ),
        ({"prompt": "More", "video": MP4_URI}, [words("More"), video], {}, task("extend")),
        ({"prompt": "A cat", "storage_uri": "gs://b/o"}, "A cat", {"delivery": "uri", "gcs_uri": "gs://b/o"}, None),
    ]

    def run(case: Any) -> Any:
        request, given, wanted, config = case
        more = {} if config is None else {"generation_config": config}
        form = {"type": "video", **wanted}
        client.interactions.create(
            model="gemini-omni-1.1-flash", input=given, background=True, response_format=form, **more
        )
        client.interactions.get("int1")
        client.interactions.cancel("int1")
        return {"request": {**request, "model": "gemini-omni-1.1-flash"}}

    return cases, run


def main() -> None:
    from google import genai

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    PLACE.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        found = []
        cases, run = {"gemini": gemini, "vertex": vertex, "interactions": interactions}[name](url)
        for case in cases:
            Recorder.sent = []
            found.append({**run(case), "sent": Recorder.sent})
        content = {"google-genai": genai.__version__, "cases": found}
        (PLACE / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: {len(found)} cases")
    server.shutdown()


if __name__ == "__main__":
    main()
