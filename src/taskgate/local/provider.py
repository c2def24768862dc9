"""Which model answers `llm` tasks of a local `up`: the user's provider, the small real model, or the fake one."""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from taskgate.local.account import LocalError
from taskgate.local.model import MODEL_NAME, why_unavailable
from taskgate.local.ports import free_port
from taskgate.local.service import Say, Service, describe_exit
from taskgate.settings import Settings

START_SECONDS = 120  # a cold disk and a busy machine included


@dataclass
class Provider:
    """What the workers are told, what is shown, and the program behind it when it is ours."""

    name: str
    env: dict[str, str] = field(default_factory=dict)
    service: Service | None = None


def is_answering(url: str, path: str, seconds: float = 2) -> bool:
    """Whether GET answers 200. Goes straight to the host, whatever proxy is set."""
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "127.0.0.1", target.port, timeout=seconds)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_answering(service: Service, url: str, path: str, cancelled: Callable[[], bool]) -> bool:
    """Waits until a program's health page answers 200; False when we were cancelled. Raises LocalError."""
    deadline = time.monotonic() + START_SECONDS
    while not is_answering(url, path):
        code = service.ended()
        if code is not None:
            raise LocalError(f"{service.name} did not start ({describe_exit(code)}):\n{service.tail()}")
        if cancelled():
            return False
        if time.monotonic() > deadline:
            raise LocalError(f"{service.name} did not answer {url}{path} in {START_SECONDS} s:\n{service.tail()}")
        time.sleep(0.05)
    return True


def choose(
    settings: Settings,
    fake: bool,
    environment: Mapping[str, str],
    logs: Path,
    say: Say,
    cancelled: Callable[[], bool],
) -> Provider:
    """Starts what has to be started; not yet ready when we were cancelled. Raises LocalError with a way on."""
    if fake:
        return _fake(environment, logs, say, cancelled)
    if settings.openai_api_key or settings.openai_base_url:
        host = urlsplit(settings.openai_base_url).netloc.rpartition("@")[2] if settings.openai_base_url else ""
        model = settings.llm_model or "the model that a task names (TASKGATE_LLM_MODEL sets a default)"
        return Provider(f"{model}, at {host or 'OpenAI'}")
    return _small_model(environment, logs, say, cancelled)


def _small_model(environment: Mapping[str, str], logs: Path, say: Say, cancelled: Callable[[], bool]) -> Provider:
    reason = why_unavailable()
    if reason is None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        service = Service(
            "model", [sys.executable, "-m", "taskgate.local.model", "--port", str(port)], environment, logs, say
        )
        service.start()
        try:
            if not wait_answering(service, url, "/health", cancelled):
                return Provider(MODEL_NAME, service=service)
        except LocalError as error:
            service.kill()
            reason = str(error)
        else:
            env = {
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": "local",
                "TASKGATE_LLM_MODEL": MODEL_NAME,
            }
            return Provider(
                f"{MODEL_NAME}, a small real model on this machine (set OPENAI_API_KEY or OPENAI_BASE_URL for another)",
                env,
                service,
            )
    raise LocalError(
        f"The small model cannot run here: {reason}\n"
        "Set OPENAI_API_KEY, or OPENAI_BASE_URL for a provider of yours, or try with --fake-provider, whose answers "
        "are made up and say so."
    )


def _fake(environment: Mapping[str, str], logs: Path, say: Say, cancelled: Callable[[], bool]) -> Provider:
    argv = [sys.executable, "-m", "taskgate.local.fake_provider", "--port", str(free_port())]
    service = Service("fake provider", argv, environment, logs, say)
    service.start()

    def address(line: str) -> str | None:
        return next((word for word in line.split() if word.startswith("http://")), None)

    url = service.first_line(address, cancelled)
    if url is None:
        if cancelled():
            return Provider("fake", service=service)
        raise LocalError(f"The fake provider did not start:\n{service.tail()}")
    url = url.rstrip("/")
    env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "fake", "TASKGATE_LLM_MODEL": "fake"}
    env |= {"GEMINI_BASE_URL": url, "GEMINI_API_KEY": "fake", "TASKGATE_VEO_POLL_SECONDS": "1"}
    return Provider("the fake provider: its answers are made up (`fake`)", env, service)


def without_proxy_for_loopback(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment with loopback hosts exempt from proxies: clients would send 127.0.0.1 there."""
    result = dict(environment)
    listed = result.get("NO_PROXY") or result.get("no_proxy") or ""
    hosts = [host.strip() for host in listed.split(",") if host.strip()]
    hosts += [host for host in ("127.0.0.1", "localhost", "::1") if host not in hosts]
    result["NO_PROXY"] = result["no_proxy"] = ",".join(hosts)
    return result
