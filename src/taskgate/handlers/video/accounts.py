"""At whose cost and where a video is made: the endpoint, the key or token, and an identity that holds no secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from taskgate.handlers.upstream_keys import key_digest, key_of
from taskgate.handlers.video.gemini import Gemini
from taskgate.handlers.video.interactions import Interactions
from taskgate.handlers.video.tokens import Tokens
from taskgate.handlers.video.vertex import Vertex
from taskgate.handlers.video.wire import Wire
from taskgate.settings import Settings
from taskgate.task import PermanentError, Upstream

GOOGLE = "https://generativelanguage.googleapis.com"


@dataclass(frozen=True, slots=True)
class Account:
    """One account at one provider. Equal identities are charged and see operations alike."""

    api: str
    endpoint: str
    """The base URL, without a slash at its end."""
    wire: Wire
    upstream: str = ""
    project: str = ""
    location: str = ""
    key: str = field(default="", repr=False)
    tokens: Tokens | None = field(default=None, repr=False)

    def identity(self) -> dict[str, str]:
        """What is kept with an operation. With tokens the project is the account; its service accounts may change."""
        return {
            "upstream": self.upstream,
            "api": self.api,
            "endpoint": self.endpoint,
            "project": self.project,
            "location": self.location,
            "key": key_digest(self.key),
        }

    async def headers(self) -> dict[str, str]:
        """Raises PermanentError or Retry where there is no token to be had."""
        return await self.tokens.headers() if self.tokens is not None else {"x-goog-api-key": self.key}

    def is_own(self, url: str) -> bool:
        """Whether a URL is on the endpoint's own origin, so that the key may go there."""
        return origin(url) == origin(self.endpoint)


def account(
    api: str, upstream: Upstream | None, settings: Settings, tokens: Callable[[str], Tokens] = Tokens
) -> Account:
    """The account for this wire. Raises PermanentError `not_configured` with what is missing.

    `tokens` makes the source of tokens for a credentials file; pass one that keeps them.
    """
    if api == "vertex":
        return _vertex(upstream, settings, tokens)
    if upstream is None:
        key, endpoint = settings.gemini_api_key, settings.gemini_base_url or GOOGLE
        if not key and not settings.gemini_base_url:
            raise _not_configured("no video provider is configured: set GEMINI_API_KEY, or TASKGATE_VEO_API=vertex")
    else:
        key, endpoint = key_of(upstream), upstream.base_url or GOOGLE
    if api not in ("gemini", "interactions"):
        raise _not_configured(f"upstream {upstream.name if upstream else ''!r} speaks {api}, which makes no videos")
    wire: Wire = Gemini() if api == "gemini" else Interactions()
    return Account(api, _checked(endpoint), wire, upstream.name if upstream else "", key=_sendable(key))


def _vertex(upstream: Upstream | None, settings: Settings, tokens: Callable[[str], Tokens]) -> Account:
    if upstream is None:
        project, location, key = settings.google_project, settings.google_location, ""
        endpoint, credentials = settings.vertex_base_url, settings.google_credentials
    else:
        project, location = upstream.project, upstream.location or settings.google_location
        endpoint, credentials, key = upstream.base_url, upstream.credentials_file, key_of(upstream)
    if not project and not key:
        raise _not_configured("Vertex wants a project: set GOOGLE_CLOUD_PROJECT, or project of the upstream")
    if not project:
        location = ""  # express mode: the key says whose
    if not endpoint:
        host = "aiplatform.googleapis.com"
        endpoint = f"https://{host}" if location in ("", "global") else f"https://{location}-{host}"
    return Account(
        "vertex",
        _checked(endpoint),
        Vertex(project, location),
        upstream.name if upstream else "",
        project,
        location,
        _sendable(key),
        None if key else tokens(credentials),
    )


def origin(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; None for what is no http(s) URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _checked(endpoint: str) -> str:
    if origin(endpoint) is None:
        raise _not_configured(f"a provider's base URL must begin with http:// or https://, not {endpoint[:100]!r}")
    return endpoint.rstrip("/")


def _sendable(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise _not_configured("the video provider's key holds characters that no HTTP header can carry")
    return key


def _not_configured(words: str) -> PermanentError:
    return PermanentError(words, code="not_configured")
