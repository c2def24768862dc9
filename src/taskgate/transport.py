"""Between the client's flows and httpx2: where the API is, the key, proxies, timeouts, and what broke."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from taskgate.exchange import Call, Reply, Trouble

DEFAULT_URL = "http://127.0.0.1:8000"
NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


def http_options(url: str | None, api_key: str | None) -> dict[str, Any]:
    """Arguments of an httpx2 client. Raises ValueError for a URL that cannot be an API's."""
    given = url or _environment("TASKGATE_URL") or _running_up() or DEFAULT_URL
    place = given.rstrip("/")
    host = _host(place)
    if not host:
        raise ValueError(
            f"{given!r} is no URL of an API: it begins with http:// or https:// and names a host, "
            "like http://127.0.0.1:8000"
        )
    key = api_key if api_key is not None else _environment("TASKGATE_API_KEY")
    # A proxy of the environment cannot reach this machine's own loopback, whatever NO_PROXY forgot.
    loopback = host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"base_url": place, "headers": headers, "trust_env": not loopback, "follow_redirects": False}


def _host(url: str) -> str | None:
    """The host of a URL that an API can have, else None."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return None
    return parts.hostname if usable else None


def _running_up() -> str | None:
    """The API of a running `taskgate up` of this user, as the command line finds it."""
    try:
        from taskgate.local.state import find
    except ImportError:  # a system without users as `up` needs them
        return None
    running = find()
    return None if running is None else running.url


def _environment(name: str) -> str:
    """A variable, or the contents of the file that NAME_FILE names."""
    value = os.environ.get(name, "")
    file = os.environ.get(f"{name}_FILE", "")
    return value or (Path(file).read_text(encoding="utf-8").strip() if file else "")


def arguments(call: Call, timeout: float) -> dict[str, Any]:
    """Arguments of httpx2's `request` for a call."""
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params or None,
        "content": call.content,
        "headers": {"Content-Type": call.content_type} if call.content is not None else None,
        "timeout": httpx2.Timeout(timeout + call.wait, connect=min(timeout, 10.0)),
    }


def reply_of(response: httpx2.Response) -> Reply:
    return Reply(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )


def trouble_of(error: httpx2.TransportError, base: httpx2.URL) -> Trouble:
    why = str(error) or type(error).__name__
    sent = not isinstance(error, NEVER_SENT)
    place = f"{base.scheme}://{base.netloc.decode()}"
    return Trouble(f"the connection to {place} broke: {why}" if sent else f"cannot reach {place}: {why}", sent)
