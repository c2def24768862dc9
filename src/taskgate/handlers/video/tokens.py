"""Access tokens of Google Cloud, refreshed before they end: service accounts, workload identity, metadata server.

google-auth does the protocols (RFC 7523, RFC 8693, the metadata server); here are its HTTP transport and the turn
that lets one refresh at a time serve every call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskgate.task import PermanentError, Retry

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
REFRESH_SECONDS = 30.0


class Tokens:
    """Tokens of the credentials in `file`, or of the metadata server where it is empty."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._credentials: Any = None
        self._refreshing = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        """Raises PermanentError `not_configured` (the file), Retry `provider_unavailable` (no token to be had now)."""
        credentials = self._credentials
        if credentials is None or not credentials.valid:
            async with self._refreshing:
                if self._credentials is None or not self._credentials.valid:
                    self._credentials = await asyncio.to_thread(self._refreshed, self._credentials)
                credentials = self._credentials
        return {"authorization": f"Bearer {credentials.token}"}

    def forget(self) -> None:
        """The provider did not take the token: get another."""
        if self._credentials is not None:
            self._credentials.token = None

    def _refreshed(self, credentials: Any) -> Any:
        from google.auth.exceptions import GoogleAuthError, RefreshError

        if credentials is None:
            credentials = self._load()
        try:
            with Transport() as transport:
                credentials.refresh(transport)
        except RefreshError as error:
            words = str(error.args[0] if error.args else error)[:300]
            if getattr(error, "retryable", False) or not self._file:
                raise Retry(f"no access token from Google: {words}", code="provider_unavailable") from error
            raise PermanentError(f"Google gives no access token: {words}", code="provider_auth") from error
        except GoogleAuthError as error:
            raise Retry(f"no access token from Google: {str(error)[:300]}", code="provider_unavailable") from error
        return credentials

    def _load(self) -> Any:
        from google.auth.exceptions import GoogleAuthError

        try:
            return _credentials(self._file)
        except OSError as error:
            words = f"the credentials file {self._file} cannot be read: {error.strerror}"
        except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError) as error:
            words = f"the credentials file {self._file} cannot be used: {str(error).splitlines()[0][:200]}"
        raise PermanentError(words, code="not_configured")


def _credentials(file: str) -> Any:
    """Raises OSError, ValueError and what google-auth raises. The kinds of files are Google's `type`."""
    from google.auth import compute_engine

    if not file:
        return compute_engine.Credentials(scopes=SCOPES)  # type: ignore[no-untyped-call]
    content = json.loads(Path(file).read_text(encoding="utf-8"))
    kind = content.get("type")
    if kind == "service_account":
        from google.oauth2 import service_account

        return service_account.Credentials.from_service_account_info(content, scopes=SCOPES)  # type: ignore[no-untyped-call]
    if kind == "external_account":
        from google.auth import identity_pool

        return identity_pool.Credentials.from_info(content, scopes=SCOPES)  # type: ignore[no-untyped-call]
    if kind == "impersonated_service_account":
        from google.auth import impersonated_credentials

        return impersonated_credentials.Credentials.from_impersonated_service_account_info(content, scopes=SCOPES)  # type: ignore[no-untyped-call]
    if kind == "authorized_user":
        from google.oauth2 import credentials

        return credentials.Credentials.from_authorized_user_info(content, scopes=SCOPES)  # type: ignore[no-untyped-call]
    raise ValueError(
        f"its type is {kind!r}, not service_account, external_account, impersonated_service_account or authorized_user"
    )


class _Response:
    """google.auth.transport.Response."""

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.status, self.headers, self.data = status, headers, data


class Transport:
    """google.auth.transport.Request over httpx2, so that no second HTTP library is needed."""

    def __init__(self) -> None:
        import httpx2

        self._client = httpx2.Client(timeout=REFRESH_SECONDS, follow_redirects=False, mounts=direct_hosts(sync=True))

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> _Response:
        """Raises google.auth.exceptions.TransportError."""
        import httpx2
        from google.auth.exceptions import TransportError

        try:
            reply = self._client.request(
                method, url, content=body, headers=dict(headers or {}), timeout=timeout or REFRESH_SECONDS
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise TransportError(error) from error  # type: ignore[no-untyped-call]
        return _Response(reply.status_code, reply.headers, reply.content)


def direct_hosts(*, sync: bool = False) -> dict[str, Any]:
    """Mounts that keep the environment's proxies away from this machine and from the metadata server."""
    import httpx2

    hosts = ("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "metadata.google.internal")
    kind = httpx2.HTTPTransport if sync else httpx2.AsyncHTTPTransport
    return {f"all://{host}": kind(limits=httpx2.Limits(max_connections=None)) for host in hosts}
