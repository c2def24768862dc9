"""The request of a `veo` task: a video from words and pictures."""

from __future__ import annotations

from typing import Any

_IMAGE = {"type": "string", "minLength": 1, "description": "A URL or a data: URI."}

VEO_REQUEST: dict[str, Any] = {
    "title": "VeoRequest",
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "pattern": r"\S", "description": "What the video shows."},
        "image": {**_IMAGE, "description": "The first frame: a URL or a data: URI."},
        "last_frame": {**_IMAGE, "description": "The last frame: a URL or a data: URI."},
        "reference_images": {"type": "array", "items": _IMAGE, "minItems": 1, "maxItems": 3},
        "model": {"type": "string", "minLength": 1},
        "aspect_ratio": {"type": "string", "examples": ["16:9", "9:16"]},
        "duration_seconds": {"type": "integer", "minimum": 1, "maximum": 60},
        "resolution": {"type": "string", "examples": ["720p", "1080p"]},
        "negative_prompt": {"type": "string"},
        "seed": {"type": "integer", "minimum": 0, "maximum": 4294967295},
    },
    "required": ["prompt"],
    "additionalProperties": True,
    "examples": [{"prompt": "A lighthouse in a storm, seen from the sea.", "aspect_ratio": "16:9"}],
}
