"""Google's manners for the fake provider: its errors, its keys, and where access tokens come from."""

from __future__ import annotations

import hmac
from typing import Any

from taskgate.local.fake_provider.behaviour import Behaviour
from taskgate.local.fake_provider.http import Request

STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
            429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}  # fmt: skip
TOKEN_PATHS = ("/token", "/v1/token")
METADATA = "/computeMetadata/v1/"


def error(behaviour: Behaviour) -> dict[str, Any]:
    """google.rpc.Status as JSON, with RetryInfo where a delay is asked for."""
    status = behaviour.status
    body: dict[str, Any] = {
        "code": status,
        "message": behaviour.message or f"This is the fake provider's {behaviour.name}.",
        "status": STATUSES.get(status, "UNKNOWN"),
    }
    if behaviour.retry_delay is not None:
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": behaviour.retry_delay}
        body["details"] = [info]
    return {"error": body}


def is_authorized(request: Request, key: str) -> bool:
    """Whether the key, or it as a bearer token, is there. An empty key lets everybody in."""
    if not key:
        return True
    given = {name.lower(): value for name, value in request.headers}
    return hmac.compare_digest(given.get(b"x-goog-api-key", b""), key.encode()) or hmac.compare_digest(
        given.get(b"authorization", b""), f"Bearer {key}".encode()
    )


class TokenSide:
    """`POST /token` (a service account's JWT, or an exchange of tokens) and the metadata server: all give `token`."""

    def __init__(self, token: str, seconds: int = 3600) -> None:
        self.token, self.seconds = token, seconds
        self.requests: list[tuple[str, bytes]] = []
        """Path and body of each request for a token."""

    def takes(self, request: Request) -> bool:
        return request.path in TOKEN_PATHS or request.path.startswith(METADATA)

    def answer(self, request: Request) -> tuple[int, dict[str, str], Any]:
        headers = {"content-type": "application/json", "metadata-flavor": "Google"}
        if request.path.startswith(METADATA) and not request.path.endswith("/token"):
            email = {"email": "robot@fake.iam.gserviceaccount.com", "scopes": [], "aliases": ["default"]}
            return 200, headers, email
        self.requests.append((request.path, request.body))
        value = {
            "access_token": self.token,
            "expires_in": self.seconds,
            "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        return 200, headers, value
