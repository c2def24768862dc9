"""The project of compose.yaml as a test runs it: its commands, its containers, its API and its pretended provider."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.compose.engine import Engine
from tests.compose.images import REPOSITORY

WAIT_SECONDS = 180.0
SECRETS = REPOSITORY / "deploy/docker/compose.secrets.yaml"
_SETTING = re.compile(r"^#?([A-Z_]+)=(.*)$")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def example_settings() -> dict[str, str]:
    """What .env.example sets."""
    lines = (REPOSITORY / ".env.example").read_text(encoding="utf-8").splitlines()
    return {match[1]: match[2] for line in lines if not line.startswith("#") and (match := _SETTING.match(line))}


class Project:
    """One project with a name of its own; `settings` is its .env: the example's, then the test's."""

    def __init__(self, engine: Engine, folder: Path, images: dict[str, str]) -> None:
        self.engine, self.folder = engine, folder
        self.name = f"taskgate-test-{os.getpid()}-{secrets.token_hex(3)}"
        self.api_port, self.provider_port = free_port(), free_port()
        self.files: list[Path] = [REPOSITORY / "compose.yaml"]
        self.settings = {
            **example_settings(),
            **images,
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_PROFILES": "fake-provider",
            "POSTGRES_PASSWORD": secrets.token_hex(16),
            "TASKGATE_PUBLISHED_PORT": str(self.api_port),
            "FAKE_PROVIDER_PUBLISHED_PORT": str(self.provider_port),
            "OPENAI_BASE_URL": "http://fake-provider:9000/v1",
            "OPENAI_API_KEY": "any",
            "TASKGATE_LLM_MODEL": "fake",
            "TASKGATE_LEASE_SECONDS": "5",
            "FAKE_PROVIDER_LATENCY": "0.1",
            # machines of every size run the tests
            "POSTGRES_CPUS": "1.0",
            "TASKGATE_API_CPUS": "1.0",
        }

    def compose(self, *arguments: str, timeout: float = 420) -> str:
        env_file = self.folder / "env"
        env_file.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()), encoding="utf-8")
        files = [text for file in self.files for text in ("--file", str(file))]
        options = ["--env-file", str(env_file), "--project-name", self.name, "--project-directory", str(REPOSITORY)]
        # the settings also as variables, which go before those that the tests' own environment may hold
        return self.engine.run(
            [*self.engine.compose_command, *files, *options, *arguments],
            cwd=REPOSITORY,
            timeout=timeout,
            variables=self.settings,
        )

    def up(self, workers: int | None = None, *services: str) -> None:
        scale = [] if workers is None else ["--scale", f"worker={workers}"]
        try:
            self.compose("up", "-d", "--no-build", *scale, *services)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None
        self.wait("the API to be ready", lambda: self.get("/readyz") is not None)

    def down(self, *options: str) -> None:
        self.compose("down", *options)

    def logs(self) -> str:
        """The latest lines of every container."""
        return self.compose("logs", "--no-color", "--tail", "20")

    def remove(self) -> None:
        """Everything, the volume too. `down` leaves the services of a profile that is not active, so name them all."""
        self.files = self.files[:1]
        self.settings["COMPOSE_PROFILES"] = "fake-provider,python-worker"
        self.down("--volumes", "--timeout", "10")
        label = f"label=com.docker.compose.project={self.name}"
        for kind in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
            left = self.engine.docker(*kind, "--quiet", "--filter", label).split()
            assert not left, f"docker {' '.join(kind)} still lists {left}"

    def containers(self, service: str, *, running: bool = True) -> list[str]:
        """The ids of a service's containers."""
        filters = [f"label=com.docker.compose.project={self.name}", f"label=com.docker.compose.service={service}"]
        options = [text for each in filters for text in ("--filter", each)]
        return self.engine.docker("ps", "--quiet", *([] if running else ["--all"]), *options).split()

    def memory_mib(self, service: str) -> list[float]:
        """What `docker stats` tells of each running container of the service."""
        units = {"B": 1 / 1024**2, "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
        usage = self.engine.docker("stats", "--no-stream", "--format", "{{.MemUsage}}", *self.containers(service))
        used = [re.match(r"([\d.]+)([A-Za-z]+) /", line) for line in usage.splitlines()]
        return [float(each[1]) * units[each[2]] for each in used if each]

    def get(self, path: str) -> Any:
        """A JSON answer of the API; None while it does not answer."""
        return _ask(f"http://127.0.0.1:{self.api_port}{path}")

    def provider(self, path: str = "/stats", *, method: str = "GET") -> Any:
        answer = _ask(f"http://127.0.0.1:{self.provider_port}{path}", method)
        assert answer is not None, "the pretended provider does not answer"
        return answer

    def submit(self, count: int, prompt: str) -> list[str]:
        """Submits so many tasks in one request; their ids."""
        body = json.dumps([{"prompt": f"{prompt} {number}"} for number in range(count)]).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api_port}/tasks", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 202
            return [task["task_id"] for task in json.load(response)]

    def counts(self) -> dict[str, int]:
        """Tasks by status, from the table itself."""
        rows = self.sql("SELECT status, count(*) FROM tasks GROUP BY status")
        return {status: int(count) for status, count in (row.split("|") for row in rows)}

    def sql(self, statement: str) -> list[str]:
        """The rows of a statement run by psql in the database's container, columns joined by `|`."""
        (container,) = self.containers("postgres")
        command = ["psql", "-U", "taskgate", "-d", "taskgate", "-X", "-A", "-t", "-c", statement]
        return self.engine.docker("exec", container, *command).splitlines()

    def wait(self, what: str, probe: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
        """Polls until `probe` answers something true; fails with what the containers said."""
        deadline = time.monotonic() + seconds
        while not probe():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:.0f} s for {what}\n{self.logs()}")
            time.sleep(0.1)

    def wait_until_done(self, total: int) -> None:
        """Until so many tasks are completed; none may have failed."""

        def done() -> bool:
            counts = self.counts()
            assert counts.get("failed", 0) == 0, self.sql("SELECT DISTINCT error FROM tasks WHERE status = 'failed'")
            return counts == {"completed": total}

        self.wait(f"{total} tasks to be completed", done)


def _ask(url: str, method: str = "GET") -> Any:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)
    except OSError:
        return None
