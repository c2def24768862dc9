"""Who calls: by key, or without keys only this machine itself.

Without keys the API is as open as the socket it listens on, so it serves only clients on loopback that mean it:
a web page that a browser shows here must not reach it by DNS rebinding (Host), as a foreign page (Origin) or
through a proxy that makes the whole world look like this machine (Forwarded).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Scope

from taskgate.api.problems import Problem
from taskgate.settings import Settings

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
_REMEDY = "Set TASKGATE_API_KEYS (or TASKGATE_ALLOW_ANONYMOUS=1 to serve everybody)."


@dataclass(frozen=True, slots=True)
class Caller:
    """`tenant` is what new tasks belong to; `sees` the tenant whose tasks it may read and change, None for all."""

    tenant: str
    sees: str | None
    admin: bool


EVERYBODY = Caller("", None, True)


class Auth:
    def __init__(self, settings: Settings) -> None:
        self._keys = [
            (_digest(key.secret.encode()), Caller(key.name, None if key.admin else key.name, key.admin))
            for key in settings.api_keys
        ]
        self._anonymous = settings.allow_anonymous
        self._good_hosts: set[bytes] = set()
        self._good_clients: set[str] = set()

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Raises Problem 401 or 403."""
        if self._keys:
            return self._by_key(headers)
        if not self._anonymous:
            self._loopback_only(scope, headers)
        return EVERYBODY

    def _by_key(self, headers: dict[bytes, bytes]) -> Caller:
        given = headers.get(b"x-api-key")
        if given is None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer":
                given = b""
        digest = _digest(given.strip())
        found: Caller | None = None
        for known, caller in self._keys:  # all of them: the time must not tell which one was close
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise Problem(
                401,
                "unauthorized",
                "The API key is missing or unknown. Send it as `Authorization: Bearer SECRET` or `X-API-Key: SECRET`.",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return found

    def _loopback_only(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        client = scope.get("client")
        if client is None or client[0] not in self._good_clients:
            if client is None or not _is_loopback(client[0]):
                raise Problem(403, "not_loopback", f"Without API keys only this machine is served. {_REMEDY}")
            if len(self._good_clients) < 100:
                self._good_clients.add(client[0])
        host = headers.get(b"host", b"")
        if host not in self._good_hosts:
            if not _is_loopback_host(host):
                name = host.decode("latin-1")[:100]
                raise Problem(403, "foreign_host", f"Without API keys the host {name!r} is not served. {_REMEDY}")
            if len(self._good_hosts) < 100:
                self._good_hosts.add(host)
        origin = headers.get(b"origin")
        if origin is not None and origin != b"null" and not _is_loopback_host(origin.partition(b"://")[2]):
            raise Problem(403, "foreign_origin", f"Without API keys a web page from elsewhere is not served. {_REMEDY}")
        if origin == b"null" or headers.get(b"sec-fetch-site") == b"cross-site":
            raise Problem(403, "foreign_origin", f"Without API keys a web page from elsewhere is not served. {_REMEDY}")
        if any(name in headers for name in _FORWARDED):
            raise Problem(403, "behind_proxy", f"A proxy stands before this API, which has no keys. {_REMEDY}")


def require_admin(caller: Caller) -> None:
    """Raises Problem 403 for a key that is not an admin's."""
    if not caller.admin:
        raise Problem(403, "admin_only", "This needs an admin's key (name:SECRET:admin in TASKGATE_API_KEYS).")


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)


def _is_loopback_host(host: bytes) -> bool:
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
    except (UnicodeDecodeError, ValueError):
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)
