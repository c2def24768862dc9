"""The request of a `veo` task: one model for every wire. Which fields a wire carries is `route`'s to say."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

_IMAGE = {"type": "string", "minLength": 1, "description": "An http(s) or gs:// URL, or a data: URI."}
_REFERENCE = {
    "anyOf": [
        _IMAGE,
        {
            "type": "object",
            "properties": {"image": _IMAGE, "type": {"enum": ["asset", "style"]}},
            "required": ["image"],
            "additionalProperties": False,
        },
    ]
}

VEO_REQUEST: dict[str, Any] = {
    "title": "VeoRequest",
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "pattern": r"\S", "description": "What the video shows."},
        "image": {**_IMAGE, "description": "The first frame: an http(s) or gs:// URL, or a data: URI."},
        "last_frame": {**_IMAGE, "description": "The last frame, likewise."},
        "reference_images": {
            "type": "array",
            "items": _REFERENCE,
            "minItems": 1,
            "maxItems": 3,
            "description": "What shall be seen in it (asset) or how it shall look (style).",
        },
        "video": {**_IMAGE, "description": "A video to go on from: a URL, the provider's own file, or a data: URI."},
        "model": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._@-]*$", "maxLength": 200},
        "aspect_ratio": {"type": "string", "pattern": r"^\d{1,2}:\d{1,2}$", "examples": ["16:9", "9:16"]},
        "duration_seconds": {"type": "integer", "minimum": 1, "maximum": 60},
        "resolution": {"type": "string", "pattern": r"^(\d{3,4}p|4k)$", "examples": ["720p", "1080p", "4k"]},
        "negative_prompt": {"type": "string", "minLength": 1},
        "seed": {"type": "integer", "minimum": 0, "maximum": 4294967295},
        "person_generation": {"enum": ["dont_allow", "allow_adult", "allow_all"]},
        "generate_audio": {"type": "boolean"},
        "fps": {"type": "integer", "minimum": 1, "maximum": 120},
        "sample_count": {"type": "integer", "minimum": 1, "maximum": 4, "description": "How many videos."},
        "enhance_prompt": {"type": "boolean"},
        "compression_quality": {"enum": ["optimized", "lossless"]},
        "resize_mode": {"enum": ["pad", "crop"]},
        "storage_uri": {"type": "string", "pattern": "^gs://.", "description": "Where the provider puts the video."},
    },
    "required": ["prompt"],
    "additionalProperties": False,
    "examples": [{"prompt": "A lighthouse in a storm, seen from the sea.", "aspect_ratio": "16:9"}],
}


@cache
def _validator() -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(VEO_REQUEST)


def check(request: dict[str, Any]) -> dict[str, Any]:
    """The request as it came. Raises pydantic.ValidationError, each error with the place of the wrong field."""
    if not _validator().is_valid(request):
        raise ValidationError.from_exception_data(
            "VeoRequest",
            [
                InitErrorDetails(
                    type=PydanticCustomError("schema", "{words}", {"words": error.message[:300]}),
                    loc=tuple(error.instance_path),
                    input=None,
                )
                for error in _validator().iter_errors(request)
            ],
            hide_input=True,
        )
    return request


VeoRequest = Annotated[dict[str, Any], AfterValidator(check), WithJsonSchema(VEO_REQUEST)]
"""A checked request, as a plain dict."""
