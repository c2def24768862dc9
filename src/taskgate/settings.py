"""Every setting of taskgate, typed: read from the environment, each secret also from a file (`NAME_FILE`).

The Go worker reads the same names with the same defaults (`go/worker/config.go`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from taskgate.environment import FileSecrets, env
from taskgate.media.place import parse_place
from taskgate.protocol.connect import Database

FLEET_FIELDS = {
    "max_concurrent": "max_concurrent_tasks",
    "max_attempts": "max_attempts",
    "max_throttle": "max_throttle_seconds",
    "result_ttl": "result_ttl_seconds",
    "ageing": "ageing_seconds",
}
"""The values that live in the database, and the fields that hand them over."""


class ApiKey:
    """One of TASKGATE_API_KEYS: `name:SECRET` or `name:SECRET:admin`. The name is the tenant."""

    __slots__ = ("admin", "name", "secret")

    def __init__(self, name: str, secret: str, admin: bool) -> None:
        self.name, self.secret, self.admin = name, secret, admin


class Settings(BaseSettings):
    """All settings. Fields are grouped by who reads them; durations are seconds."""

    model_config = SettingsConfigDict(
        extra="ignore", populate_by_name=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    # everybody who talks to the database
    database_url: str = env("DATABASE_URL", default="", description="PostgreSQL, postgresql://…")
    schema_name: str = env(
        "TASKGATE_SCHEMA",
        default="public",
        pattern=r"^[a-z_][a-z0-9_]{0,50}$",
        description="schema of the tasks table",
    )

    database_pooler: bool = env(
        "TASKGATE_DATABASE_POOLER",
        default=False,
        description="behind a transaction-mode pooler: poll, no LISTEN",
    )

    # written to the database by `taskgate migrate` when set and changed; the database is the one truth
    upstreams_file: str = env(
        "TASKGATE_UPSTREAMS_FILE", default="", description="TOML file of upstreams that `taskgate migrate` applies"
    )
    max_concurrent_tasks: int = env(
        "MAX_CONCURRENT_TASKS",
        default=20,
        ge=0,
        le=1_000_000,
        description="running at once, whole fleet; 0 pauses",
    )
    max_attempts: int = env("TASKGATE_MAX_ATTEMPTS", default=3, ge=1, le=1000, description="attempts a task")
    max_throttle_seconds: float = env(
        "TASKGATE_MAX_THROTTLE_SECONDS",
        default=3600,
        ge=0,
        description="a task may be put off by 429s, in all",
    )
    result_ttl_seconds: float = env(
        "TASKGATE_RESULT_TTL_SECONDS", default=7 * 86400, gt=0, description="a finished task is kept"
    )
    ageing_seconds: float = env(
        "TASKGATE_AGEING_SECONDS", default=300, ge=0, description="a wait that raises a priority by one; 0: never"
    )

    # workers
    slots: int = env("TASKGATE_SLOTS", default=20, ge=1, le=100_000, description="tasks at once in one process")
    claim_ahead: int = env(
        "TASKGATE_CLAIM_AHEAD",
        default=9,
        ge=0,
        le=20,
        description="so many more tasks claimed for each free slot, while tasks take a millisecond or two",
    )
    lease_seconds: float = env("TASKGATE_LEASE_SECONDS", default=60, ge=1, le=86400, description="a lease")
    timeout_seconds: float = env("TASKGATE_TIMEOUT_SECONDS", default=600, gt=0, description="one attempt")
    grace_seconds: float = env("TASKGATE_GRACE_SECONDS", default=30, ge=0, description="drain after SIGTERM")
    poll_seconds: float = env(
        "TASKGATE_POLL_SECONDS",
        default=15,
        gt=0,
        description="look for work without a notification, with jitter",
    )
    worker_port: int | None = env(
        "TASKGATE_WORKER_PORT",
        default=None,
        ge=0,
        le=65535,
        description="/healthz and /metrics of a worker; off",
    )
    max_result_bytes: int = env(
        "TASKGATE_MAX_RESULT_BYTES", default=10 * 1024**2, ge=1024, description="a result, as JSON"
    )

    # API
    host: str = env("TASKGATE_HOST", default="127.0.0.1", description="API address")
    port: int = env("TASKGATE_PORT", default=8000, ge=0, le=65535, description="API port")
    api_keys_text: str = env("TASKGATE_API_KEYS", default="", repr=False, description='"acme:SECRET, ops:SECRET:admin"')
    allow_anonymous: bool = env("TASKGATE_ALLOW_ANONYMOUS", default=False, description="serve other hosts without keys")
    max_body_bytes: int = env("TASKGATE_MAX_BODY_BYTES", default=10 * 1024**2, ge=1024, description="one body")
    compat: Literal["", "origin"] = env("TASKGATE_COMPAT", default="", description="origin: answers of the origin")

    # everybody
    log_format: Literal["auto", "console", "json"] = env(
        "TASKGATE_LOG_FORMAT", default="auto", description="auto: console on a terminal, else json"
    )
    log_level: Literal["debug", "info", "warning", "error"] = env(
        "TASKGATE_LOG_LEVEL", default="info", description="debug also tells of each task that a worker takes and ends"
    )

    # providers
    openai_api_key: str = env("OPENAI_API_KEY", default="", repr=False, description="chat provider's key")
    openai_base_url: str = env("OPENAI_BASE_URL", default="", description="an OpenAI-shaped chat provider")
    llm_model: str = env("TASKGATE_LLM_MODEL", default="", description="model when the task names none")
    llm_raw_response: bool = env(
        "TASKGATE_LLM_RAW_RESPONSE",
        default=False,
        description="keep the provider's whole answer as result.raw",
    )
    images: Literal["inline", "pass"] = env(
        "TASKGATE_IMAGES", default="inline", description="download image URLs, or pass them on"
    )
    media_allow: str = env(
        "TASKGATE_MEDIA_ALLOW", default="", description="private hosts and networks that media may come from"
    )
    media_max_bytes: int = env("TASKGATE_MEDIA_MAX_BYTES", default=20 * 1024**2, ge=1024, description="one image")
    media_max_video_bytes: int = env(
        "TASKGATE_MEDIA_MAX_VIDEO_BYTES", default=50 * 1024**2, ge=1024, description="one video that a task names"
    )
    media_max_pixels: int = env(
        "TASKGATE_MEDIA_MAX_PIXELS", default=50_000_000, ge=1, description="width times height of one image"
    )
    media_store: str = env(
        "TASKGATE_MEDIA_STORE",
        default="postgres",
        description="what tasks make: postgres, file:///folder, s3://bucket/prefix?endpoint=URL&region=REGION",
    )
    media_max_store_bytes: int = env(
        "TASKGATE_MEDIA_MAX_STORE_BYTES", default=2 * 1024**3, ge=1024, description="one stored image or video"
    )
    gemini_api_key: str = env(
        "GOOGLE_API_KEY", "GEMINI_API_KEY", default="", repr=False, description="video provider's key"
    )
    gemini_base_url: str = env(
        "GEMINI_BASE_URL",
        "GOOGLE_GEMINI_BASE_URL",
        default="",
        description="a Gemini-shaped video provider; Google's own",
    )
    veo_api: Literal["gemini", "vertex", "interactions"] = env(
        "TASKGATE_VEO_API", default="interactions", description="wire of `veo` tasks: gemini, vertex or interactions"
    )
    veo_model: str = env("TASKGATE_VEO_MODEL", default="", description="video model when the task names none")
    model_aliases_text: str = env(
        "TASKGATE_MODEL_ALIASES", default="", description='"old=new, …": other models in place of those named'
    )
    veo_poll_seconds: float = env(
        "TASKGATE_VEO_POLL_SECONDS", default=10, gt=0, le=3600, description="between two looks at a video operation"
    )
    veo_submit_seconds: float = env(
        "TASKGATE_VEO_SUBMIT_SECONDS", default=120, gt=0, description="waiting for the answer to a submission"
    )
    veo_timeout_seconds: float = env(
        "TASKGATE_VEO_TIMEOUT_SECONDS", default=3600, gt=0, description="one attempt at a `veo` task"
    )
    veo_audio_retries: int = env(
        "TASKGATE_VEO_AUDIO_RETRIES", default=0, ge=0, le=20, description="new tries when the audio filter struck"
    )
    ambiguous_submit: Literal["fail", "retry"] = env(
        "TASKGATE_AMBIGUOUS_SUBMIT",
        default="fail",
        description="a `veo` submission whose fate is unknown: end as submit_ambiguous, or pay again",
    )
    llm_ambiguous: Literal["retry", "fail"] = env(
        "TASKGATE_LLM_AMBIGUOUS", default="retry", description="the same for `llm`"
    )
    account_wait_seconds: float = env(
        "TASKGATE_ACCOUNT_WAIT_SECONDS",
        default=600,
        ge=0,
        description="for a worker with the account of an open operation, or with the upstream of a task",
    )
    google_project: str = env("GOOGLE_CLOUD_PROJECT", default="", description="Vertex: the project")
    google_location: str = env("GOOGLE_CLOUD_LOCATION", default="us-central1", description="Vertex: the region")
    vertex_base_url: str = env("GOOGLE_VERTEX_BASE_URL", default="", description="Vertex: the region's own")
    google_credentials: str = env(
        "GOOGLE_APPLICATION_CREDENTIALS",
        default="",
        description="Vertex: file of a service account or workload identity; the metadata server",
    )
    storage_base_url: str = env("STORAGE_EMULATOR_HOST", default="", description="where gs:// results are; Google's")

    # producers
    url: str = env("TASKGATE_URL", default="http://127.0.0.1:8000", description="where the API is")
    api_key: str = env("TASKGATE_API_KEY", default="", repr=False, description="key for the API")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, FileSecrets(settings_cls)

    @field_validator("database_url")
    @classmethod
    def _postgres_only(cls, value: str) -> str:
        if value and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("must be a postgresql:// URL")
        return value

    @field_validator("media_store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        parse_place(value)
        return value

    @model_validator(mode="after")
    def _keys_parse(self) -> Settings:
        _ = self.api_keys
        _ = self.model_aliases
        return self

    @property
    def database(self) -> Database:
        """Raises ValueError when no database is configured."""
        if not self.database_url:
            raise ValueError("DATABASE_URL is not set: give a postgresql:// URL, or run `taskgate up`")
        return Database(self.database_url, self.schema_name, self.database_pooler)

    @cached_property
    def model_aliases(self) -> dict[str, str]:
        """Model names in place of others. Raises ValueError for a pair that is none."""
        aliases: dict[str, str] = {}
        for entry in filter(None, (part.strip() for part in self.model_aliases_text.split(","))):
            old, sign, new = (part.strip() for part in entry.partition("="))
            if not (old and sign and new) or old == new:
                raise ValueError(f"TASKGATE_MODEL_ALIASES: each entry is old=new, not {entry[:100]!r}")
            aliases[old] = new
        return aliases

    def fleet_values(self) -> dict[str, float]:
        """What `taskgate migrate` writes to the database when it changed: one truth for the whole fleet.

        Only what is set: a value that this environment says nothing about stays as it is there.
        """
        return {key: getattr(self, field) for key, field in FLEET_FIELDS.items() if field in self.model_fields_set}

    @cached_property
    def api_keys(self) -> list[ApiKey]:
        """The parsed keys. Raises ValueError for a malformed or doubled one."""
        keys: list[ApiKey] = []
        for entry in filter(None, (part.strip() for part in self.api_keys_text.split(","))):
            parts = entry.split(":")
            if len(parts) not in (2, 3) or not all(parts) or parts[2:] not in ([], ["admin"]):
                raise ValueError("TASKGATE_API_KEYS: each entry is name:SECRET or name:SECRET:admin")
            keys.append(ApiKey(parts[0], parts[1], len(parts) == 3))
        if len({key.secret for key in keys}) != len(keys):
            raise ValueError("TASKGATE_API_KEYS: two entries share a secret")
        return keys
