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

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from taskgate.meant import meant

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_SECRETS = frozenset({"key", "api_key", "apikey", "secret", "token", "password", "credentials"})
"""What a key that stands in the file itself is called."""

Mistake = tuple[str, str]
"""Where it is, such as upstreams.local.key (empty: the file), and what is wrong."""


class BadUpstreams(ValueError):
    """The file cannot be used. The message says where and why, of every mistake, and so does `mistakes` one by one."""

    def __init__(self, path: str | Path, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        words = [f"{place}: {why}" if place else why for place, why in mistakes]
        self.summary = f"{path}: {words[0]}" if len(words) == 1 else f"{path} has {len(words)} mistakes"
        super().__init__(self.summary if len(words) == 1 else "\n  ".join([f"{self.summary}:", *words]))


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


def read_upstreams(path: str | Path, *, allow_empty: bool = False) -> list[dict[str, Any]]:
    """The upstreams of a file, for `apply_upstreams`. Raises BadUpstreams, also for a file without one."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUpstreams(path, [("", f"cannot read it: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadUpstreams(path, [("", f"is not TOML: {error}")]) from None
    table = content.get("upstreams", {})
    mistakes = [
        (name, "is not known here: each upstream is a table [upstreams.NAME]")
        for name in sorted(content.keys() - {"upstreams"})
    ]
    if not isinstance(table, dict):
        mistakes.append(("upstreams", "must be tables: each upstream is a table [upstreams.NAME]"))
        table = {}
    elif not table and not mistakes and not allow_empty:
        mistakes.append(
            (
                "",
                "there is no table [upstreams.NAME], so every upstream would be removed: if that is meant, run "
                f"`taskgate upstreams apply --empty {path}`",
            )
        )
    found = []
    for name, values in table.items():
        wrong = _mistakes(name, values)
        mistakes += wrong
        if not wrong:
            found.append({"name": name, **_Upstream.model_validate(values).model_dump()})
    mistakes += _rivals(found)
    if mistakes:
        raise BadUpstreams(path, mistakes)
    return found


def _mistakes(name: str, values: Any) -> list[Mistake]:
    """What is wrong with one table."""
    place = f"upstreams.{name}"
    if not isinstance(values, dict):
        return [(place, "must be a table [upstreams.NAME]")]
    wrong: list[Mistake] = []
    if not _NAME.fullmatch(name):
        wrong.append((place, f"{name!r} is no name: use 1 to 100 of a-z 0-9 _ . - (a letter or digit first)"))
    try:
        _Upstream.model_validate(values)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_context=False, include_input=False):
            key = str(each["loc"][0])
            words = _unknown(key) if each["type"] == "extra_forbidden" else each["msg"].removeprefix("Value error, ")
            wrong.append((".".join([place, *map(str, each["loc"])]), words))
    if values.get("key_env") and values.get("key_file"):
        wrong.append((place, "give key_env or key_file, not both"))
    if values.get("api") != "vertex" and any(values.get(key) for key in ("project", "location", "credentials_file")):
        wrong.append((place, "project, location and credentials_file belong to the API vertex"))
    return wrong


def _unknown(key: str) -> str:
    if key.lower() in _SECRETS:
        return "no key stands in this file: name the worker's own variable in key_env, or a file of its own in key_file"
    found = meant(key, _Upstream.model_fields)
    return (
        f"is no key; did you mean {found}?" if found else f"is no key; these are: {', '.join(_Upstream.model_fields)}"
    )


def _rivals(found: list[dict[str, Any]]) -> list[Mistake]:
    """Two upstreams of one API for exactly the same model: which one would get its tasks is no one's intention."""
    takers: dict[tuple[str, str], str] = {}
    wrong: list[Mistake] = []
    for each in found:
        for model in each["models"] if each["enabled"] else ():
            other = takers.setdefault((each["api"], model), each["name"])
            if other != each["name"] and not model.endswith("*"):
                why = (
                    f"upstreams.{other} and upstreams.{each['name']} both name the model {model!r}: leave it "
                    "to one of them, or set enabled = false (a task can still ask for an upstream by name)"
                )
                wrong.append(("", why))
    return wrong


def upstreams_json(path: str | Path, *, allow_empty: bool = False) -> str:
    """`read_upstreams` as the JSON text that the database takes."""
    return json.dumps(read_upstreams(path, allow_empty=allow_empty))
