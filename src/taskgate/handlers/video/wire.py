"""What the three wires have in common: an HTTP call, media on their way in, and what a look at an operation shows."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class HttpCall:
    """`path` begins behind the base URL; `body` is sent as JSON, None for none."""

    method: str
    path: str
    body: Any = None


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a video for the provider: base64 text, or a URL that the provider reads itself."""

    mime: str
    data: str = ""
    uri: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """A checked request with its media at hand."""

    request: Mapping[str, Any]
    image: Media | None = None
    last_frame: Media | None = None
    reference_images: Sequence[tuple[Media, str]] = ()
    """Each with its type, `asset` or `style`."""
    video: Media | None = None

    def get(self, name: str) -> Any:
        return self.request.get(name)


@dataclass(frozen=True, slots=True)
class Video:
    """A finished video at the provider: where it is, or itself in base64."""

    uri: str = ""
    data: str = field(default="", repr=False)
    mime: str = "video/mp4"


@dataclass(frozen=True, slots=True)
class Pending:
    """Not over yet."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Over, without an error; `filtered` says why videos were kept back."""

    videos: Sequence[Video]
    filtered_count: int = 0
    filtered_reasons: Sequence[str] = ()
    usage: Any = None


@dataclass(frozen=True, slots=True)
class Broken:
    """Over, with an error. `code` is a google.rpc.Code or the like."""

    code: int | None
    message: str


State = Pending | Finished | Broken


class Wire(Protocol):
    """One provider API. Every method is pure; `state` raises ValueError for what is no answer of this API."""

    def submission(self, inputs: Inputs, model: str) -> HttpCall: ...

    def operation(self, body: Any) -> str | None:
        """The operation's name in the answer to a submission."""
        ...

    def poll(self, name: str) -> HttpCall: ...

    def state(self, body: Any) -> State: ...

    def cancel(self, name: str) -> HttpCall: ...


def put(target: dict[str, Any], name: str, value: Any) -> None:
    """Only what was said is sent."""
    if value is not None:
        target[name] = value


def mime_of_uri(uri: str, default: str) -> str:
    """By its ending, for a medium that only the provider can read."""
    return mimetypes.guess_type(uri.partition("?")[0])[0] or default


def object_of(body: Any) -> Mapping[str, Any]:
    """Raises ValueError unless it is a JSON object."""
    if not isinstance(body, dict):
        raise ValueError("the answer is not a JSON object")
    return body


def video_of(part: Any, uri: str, data: str, mime: str) -> Video | None:
    """A video by the names that a wire has for its fields; None if there is none to be had."""
    if not isinstance(part, dict) or not (part.get(uri) or part.get(data)):
        return None
    return Video(str(part.get(uri) or ""), str(part.get(data) or ""), str(part.get(mime) or "video/mp4"))
