"""A Docker engine for the tests: the one that runs, or one that is started here and stopped again by its pid."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 60


class NoEngine(Exception):
    """Why no engine can be had."""


def cache_folder() -> Path:
    """Images are kept here from run to run when the engine is started here. Removing it costs only time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskgate" / "compose"


class Engine:
    """The `docker` and Compose programs, and the environment that leads them to the engine."""

    def __init__(self, host: str | None) -> None:
        self.environment = {**os.environ, "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}
        if host is not None:
            self.environment["DOCKER_HOST"] = host
        self.compose_command = self._find_compose()

    def _find_compose(self) -> list[str]:
        named = os.environ.get("TASKGATE_COMPOSE")  # a program of your choice
        for command in [[named]] if named else [["docker", "compose"], ["docker-compose"]]:
            if shutil.which(command[0]):
                run = subprocess.run([*command, "version"], env=self.environment, capture_output=True)
                if run.returncode == 0:
                    return command
        raise NoEngine("Docker Compose is missing (apt-get install docker-compose)")

    def docker(
        self,
        *arguments: str,
        stdin: int | None = None,
        timeout: float = 300,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Runs `docker`; its output. Raises AssertionError with all that it said when it fails."""
        return self.run(["docker", *arguments], stdin=stdin, timeout=timeout, variables=variables)

    def run(
        self,
        command: list[str],
        *,
        cwd: Path | None = None,
        stdin: int | None = None,
        timeout: float = 300,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**self.environment, **(variables or {})},
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _answers(host: str | None) -> bool:
    environment = os.environ if host is None else {**os.environ, "DOCKER_HOST": host}
    # `docker info` ends with 0 also without an engine in some versions; a format of the server's does not
    run = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], env=environment, capture_output=True, timeout=30
    )
    return run.returncode == 0


@contextmanager
def engine() -> Iterator[Engine]:
    """Raises NoEngine with the reason and the remedy."""
    if shutil.which("docker") is None:
        raise NoEngine("the program docker is missing (apt-get install docker.io docker-compose debootstrap)")
    if _answers(None):
        yield Engine(None)
        return
    if shutil.which("dockerd") is None:
        raise NoEngine("no Docker engine runs and dockerd is missing (apt-get install docker.io)")
    if os.geteuid() != 0:
        raise NoEngine("no Docker engine runs, and only root can start one")
    folder = Path(tempfile.mkdtemp(prefix="taskgate-engine-"))
    try:
        with _started(folder) as host:
            yield Engine(host)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _started(folder: Path) -> Iterator[str]:
    data = cache_folder() / "engine"
    data.mkdir(parents=True, exist_ok=True)
    host = f"unix://{folder}/docker.sock"
    log = folder / "dockerd.log"
    options = {
        "--host": host,
        "--data-root": str(data),
        "--exec-root": str(folder / "run"),
        "--pidfile": str(folder / "dockerd.pid"),
        "--group": "root",
    }
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["dockerd", *(text for pair in options.items() for text in pair)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C of the tests must not end it before its containers are removed
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(host):
            if server.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace").splitlines()[-5:]
                raise NoEngine("dockerd does not start here: " + " / ".join(said))
            time.sleep(0.2)
        yield host
        # the cache must not grow for ever; what was built lately makes the next run short
        subprocess.run(
            ["docker", "--host", host, "image", "prune", "--force", "--filter", "until=48h"], capture_output=True
        )
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
