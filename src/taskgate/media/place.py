"""TASKGATE_MEDIA_STORE: `postgres`, `file:///path` or `s3://bucket/prefix?endpoint=URL&region=REGION`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, unquote, urlsplit

from taskgate.protocol.media import POSTGRES


@dataclass(frozen=True, slots=True)
class Place:
    """Where media are kept. `name` is what the database keeps of it: without endpoint and region."""

    name: str
    folder: str = ""
    """Of `file:`, absolute."""
    bucket: str = ""
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None


def parse_place(text: str) -> Place:
    """Raises ValueError, with what would be right, for what is no place."""
    if text == POSTGRES:
        return Place(POSTGRES)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return _folder(text)
    if parts.scheme == "s3":
        return _bucket(text)
    raise ValueError(f"{text!r} is no media store: use postgres, file:///folder or s3://bucket/prefix")


def _folder(text: str) -> Place:
    parts = urlsplit(text)
    path = PurePosixPath(unquote(parts.path))
    if parts.netloc or not path.is_absolute() or path == PurePosixPath("/") or parts.query or ".." in path.parts:
        raise ValueError(f"{text!r}: a folder is given like file:///var/lib/taskgate/media, absolute and without ..")
    return Place(f"file://{path}", folder=str(path))


def _bucket(text: str) -> Place:
    parts = urlsplit(text)
    options = dict(parse_qsl(parts.query))
    unknown = sorted(options.keys() - {"endpoint", "region"})
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc or unknown or "@" in parts.netloc or ":" in parts.netloc:
        what = f"knows no option {unknown[0]}" if unknown else "names no bucket, or more than one"
        raise ValueError(f"{text!r} {what}: use s3://bucket/prefix?endpoint=URL&region=REGION; keys come from AWS_*")
    endpoint = options.get("endpoint")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ValueError(f"{text!r}: the endpoint begins with http:// or https://")
    name = f"s3://{parts.netloc}/{prefix}".rstrip("/")
    return Place(name, bucket=parts.netloc, prefix=prefix, endpoint=endpoint, region=options.get("region"))
