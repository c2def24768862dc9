"""The file of upstreams (TOML), checked before it goes to the database.

[upstreams.local]
api = "openai"                        # openai, gemini, vertex or interactions
base_url = "http://127.0.0.1:11434/v1"
key_env = "LOCAL_KEY"                 # or key_file; the worker's own: no key stands here
models = ["qwen3*", "llama3.2"]       # exact, or a beginning with *; "*" takes what names no model as well
model = "llama3.2"                    # for tasks that name none
max_concurrent = 4                    # limits of the whole fleet
requests_per_minute = 600
tokens_per_minute = 100000
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")


class BadUpstreams(ValueError):
    """The file cannot be used; the message says where and why."""


class _Upstream(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    api: Literal["openai", "gemini", "vertex", "interactions"]
    base_url: str = ""
    key_env: str = Field("", pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")
    key_file: str = ""
    models: list[str] = []
    model: str = ""
    project: str = ""
    location: str = ""
    credentials_file: str = ""
    max_concurrent: int | None = Field(None, ge=0)
    requests_per_minute: float | None = Field(None, gt=0)
    tokens_per_minute: float | None = Field(None, gt=0)
    enabled: bool = True

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("must begin with http:// or https:// and name a host")
            if parts.username or parts.password or parts.query:
                raise ValueError("must hold no user, password or query: keys come from key_env or key_file")
        return value.rstrip("/")

    @field_validator("models")
    @classmethod
    def _are_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            if not pattern or len(pattern) > 200 or "*" in pattern[:-1]:
                raise ValueError(f"{pattern[:100]!r} is no model name: a * may stand at its end only")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> _Upstream:
        if self.key_env and self.key_file:
            raise ValueError("give key_env or key_file, not both")
        if self.api != "vertex" and (self.project or self.location or self.credentials_file):
            raise ValueError("project, location and credentials_file belong to the API vertex")
        return self


def read_upstreams(path: str | Path, *, allow_empty: bool = False) -> list[dict[str, Any]]:
    """The upstreams of a file, for `apply_upstreams`. Raises BadUpstreams, also for a file without one."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUpstreams(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadUpstreams(f"{path} is not TOML: {error}") from None
    table = content.get("upstreams", {})
    strange = sorted(content.keys() - {"upstreams"})
    if strange or not isinstance(table, dict):
        raise BadUpstreams(
            f"{path}: has {', '.join(strange) or 'no tables'}; each upstream is a table [upstreams.NAME]"
        )
    if not table and not allow_empty:
        raise BadUpstreams(
            f"{path} has no table [upstreams.NAME], so every upstream would be removed: if that is meant, run "
            f"`taskgate upstreams apply --empty {path}`"
        )
    found = []
    for name, values in table.items():
        if not _NAME.fullmatch(name):
            raise BadUpstreams(f"{path}: {name!r} is no name: use 1 to 100 of a-z 0-9 _ . - (a letter or digit first)")
        try:
            found.append({"name": name, **_Upstream.model_validate(values).model_dump()})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, ["upstreams", name, *first["loc"]]))
            raise BadUpstreams(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from None
    _refuse_rivals(path, found)
    return found


def _refuse_rivals(path: str | Path, found: list[dict[str, Any]]) -> None:
    """Two upstreams of one API for exactly the same model: which one would get its tasks is no one's intention."""
    takers: dict[tuple[str, str], str] = {}
    for each in found:
        for model in each["models"] if each["enabled"] else ():
            other = takers.setdefault((each["api"], model), each["name"])
            if other != each["name"] and not model.endswith("*"):
                raise BadUpstreams(
                    f"{path}: upstreams.{other} and upstreams.{each['name']} both name the model {model!r}: leave it "
                    "to one of them, or set enabled = false (a task can still ask for an upstream by name)"
                )


def upstreams_json(path: str | Path, *, allow_empty: bool = False) -> str:
    """`read_upstreams` as the JSON text that the database takes."""
    return json.dumps(read_upstreams(path, allow_empty=allow_empty))
