"""Which wire a video goes by, with which model, and which fields that wire cannot carry.

The API asks before it takes a task, the worker before it pays: the same functions for both. The fields are those that
google-genai sends (2.34.0 for gemini, 3.6.1 for vertex and interactions); it refuses the others itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskgate.settings import Settings
from taskgate.task import Upstream

COMMON = frozenset(
    {"prompt", "image", "reference_images", "video", "model", "aspect_ratio", "duration_seconds", "resolution"}
)
GEMINI = COMMON | {"last_frame", "negative_prompt", "person_generation", "sample_count", "enhance_prompt"}
FIELDS: Mapping[str, frozenset[str]] = {
    "gemini": GEMINI,
    "vertex": GEMINI | {"seed", "generate_audio", "fps", "compression_quality", "resize_mode", "storage_uri"},
    "interactions": COMMON | {"seed", "storage_uri", "sample_count"},
}
DEFAULT_MODELS = {"vertex": "veo-3.1-generate-001", "interactions": "gemini-omni-1.1-flash", "gemini": ""}
RETIRED = {
    "veo-2.0-generate-001": "gemini-omni-1.1-flash",
    "veo-3.0-generate-001": "gemini-omni-1.1-flash",
    "veo-3.0-fast-generate-001": "gemini-omni-1.1-flash",
    "veo-3.1-generate-preview": "gemini-omni-1.1-flash",
    "veo-3.1-fast-generate-preview": "gemini-omni-1.1-flash",
    "veo-3.1-lite-generate-preview": "gemini-omni-1.1-flash",
    "gemini-omni-flash-preview": "gemini-omni-1.1-flash",
}
"""Models that Google has switched off on the Gemini API, and what it names in their place."""


@dataclass(frozen=True, slots=True)
class Route:
    """`model` is empty where nobody names one."""

    api: str
    model: str


def route(request: Mapping[str, Any], upstream: Upstream | None, settings: Settings) -> Route:
    """Gemini operations and interactions share host and key, so there the model's own name decides."""
    api = upstream.api if upstream is not None else settings.veo_api
    wanted = request.get("model") or (upstream.model if upstream is not None else "") or settings.veo_model
    model = settings.model_aliases.get(wanted, wanted)
    if api == "gemini" and model.startswith("gemini-"):
        api = "interactions"
    elif api == "interactions" and model.startswith("veo-"):
        api = "gemini"
    return Route(api, model or DEFAULT_MODELS.get(api, ""))


def unsupported(request: Mapping[str, Any], to: Route) -> list[tuple[str, str]]:
    """What this wire does not carry: pointer and detail each. A field that is null counts as left out."""
    if to.api not in FIELDS:
        return [("/model", f"goes to an upstream of the API {to.api}, which makes no videos")]
    errors = []
    where = f"the API {to.api} (model {to.model or 'none'})"
    for name, value in request.items():
        if value is None:
            continue
        if name not in FIELDS[to.api]:
            able = [api for api, fields in FIELDS.items() if name in fields]
            hint = f"; {' and '.join(able)} {'takes' if len(able) == 1 else 'take'} it" if able else ""
            errors.append((f"/{name}", f"{name} is not supported by {where}: leave it out{hint}"))
    if to.api == "interactions":
        if (request.get("sample_count") or 1) > 1:
            errors.append(("/sample_count", f"{where} makes one video a task: post one task for each"))
        if request.get("image") and request.get("reference_images"):
            errors.append(("/reference_images", f"{where} takes image or reference_images, not both"))
    if to.api != "vertex" and any(
        isinstance(each, dict) and each.get("type") == "style" for each in request.get("reference_images") or ()
    ):
        errors.append(("/reference_images", f"{where} knows no style references: leave out type; vertex takes it"))
    if to.api == "gemini":
        errors += [
            (place, f"{where} takes no gs:// URL: give an http(s) URL or a data: URI")
            for place, url in media_urls(request)
            if url.startswith("gs://")
        ]
    return errors


def media_urls(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pointer and URL of every image and video that the request names."""
    found = [(f"/{name}", request[name]) for name in ("image", "last_frame", "video") if request.get(name)]
    for position, each in enumerate(request.get("reference_images") or ()):
        found.append((f"/reference_images/{position}", each["image"] if isinstance(each, dict) else each))
    return found


def route_errors(request: Mapping[str, Any], upstream: Upstream | None, settings: Settings) -> list[tuple[str, str]]:
    """What to refuse at submission; the request has passed its schema."""
    to = route(request, upstream, settings)
    if not to.model:
        words = f"the API {to.api} has no model that everybody has: name one here, or set TASKGATE_VEO_MODEL"
        return [("/model", words), *unsupported(request, to)]
    return unsupported(request, to)
