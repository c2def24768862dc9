"""`taskgate up` from start to Ctrl-C, with the real API, worker, database and model."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from taskgate.local import state
from taskgate.local.account import LocalError
from taskgate.local.supervisor import Supervisor, UpOptions
from taskgate.settings import Settings
from tests.local.helpers import alive
from tests.waiting import until

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PROGRAM = """
import sys
from pathlib import Path
from taskgate.local.supervisor import UpOptions, up
data, fake, workers, kind = sys.argv[1:]
sys.exit(up(UpOptions(data=Path(data), fake_provider=fake == "fake", workers=int(workers), worker=kind, port=0)))
"""
FORGOTTEN = re.compile(r"(?i)^(TASKGATE_|OPENAI_|GEMINI_|GOOGLE_|DATABASE_URL|MAX_CONCURRENT|PG|.*_proxy$|LC_|LANG)")


class RunningUp:
    """A `taskgate up` in a process of its own, with a dead proxy and a locale that is not there."""

    def __init__(
        self, data: Path, provider: str = "fake", workers: int = 1, kind: str = "python", **environment: str
    ) -> None:
        self.data = data
        clean = {name: value for name, value in os.environ.items() if not FORGOTTEN.match(name)}
        clean |= {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "LC_ALL": "fr_FR.UTF-8"}
        clean |= {"XDG_DATA_HOME": str(data.parent), **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(data), provider, str(workers), kind],
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def ready(self) -> RunningUp:
        """Waits until it says that it is up."""

        def probe() -> bool:
            assert self.process.poll() is None, self.output
            return "What happens from here on" in self.output

        until(f"up to be ready\n{self.output}", probe, 240)
        return self

    def says(self, pattern: str, seconds: float = 120) -> str:
        """Waits for a line of output."""
        return until(
            f"a line like {pattern!r}", lambda: next((x for x in self.lines if re.search(pattern, x)), None), seconds
        )

    def state(self) -> state.State:
        found = state.read(self.data)
        assert found is not None
        return found

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.state().url + path, data, {"Content-Type": "application/json"}, method=method
        )
        with direct.open(request, timeout=120) as answer:
            return json.load(answer)

    def finished(self, task_id: str) -> Any:
        """Waits for a task's end."""

        def probe() -> Any:
            task = self.call("GET", f"/tasks/{task_id}?wait=20")
            return task if task["status"] in ("completed", "failed") else None

        return until(f"task {task_id} to end\n{self.output}", probe, 240)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(120)
        self._reader.join()
        return code

    def __enter__(self) -> RunningUp:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._reader.join()


def gone(pid: int) -> bool:
    return not alive(pid)


def all_pids(up: RunningUp) -> list[int]:
    postmaster = int((up.data / "postgres" / "pgdata" / "postmaster.pid").read_text().split("\n")[0])
    return [pid for pid, _ in up.state().children.values()] + [postmaster]


def test_the_first_task_as_a_person_would(server_folder: Path) -> None:
    data = server_folder / "data"
    with RunningUp(data, "real").ready() as up:
        assert "smollm2-135m, a small real model" in up.output
        post, get = (line.strip() for line in up.lines if line.strip().startswith("curl"))
        environment = {"PATH": os.environ["PATH"], "http_proxy": "http://127.0.0.1:9"}
        run = subprocess.run(["/bin/sh", "-c", post], env=environment, capture_output=True, text=True)
        accepted = json.loads(run.stdout)
        assert accepted["status"] == "pending"
        get = get.replace("TASK_ID", accepted["task_id"])
        run = subprocess.run(["/bin/sh", "-c", get], env=environment, capture_output=True, text=True)
        task = json.loads(run.stdout)
        assert task["status"] == "completed", up.output
        assert "Paris" in task["result"]["text"]
        assert task["result"]["model"] == "smollm2-135m"
        up.says(rf"llm {accepted['task_id']} completed in .* s: .*Paris")
        assert up.state().model_settings["TASKGATE_LLM_MODEL"] == "smollm2-135m"
        pids, dsn = all_pids(up), up.state().dsn
        assert len(pids) == 4

        refused = RunningUp(data)
        assert refused.process.wait(120) == 1
        refused._reader.join()
        assert f"runs already on {data} (process {up.process.pid})" in refused.output

        assert up.end() == 0
        for pid in pids:
            assert not alive(pid)
        assert state.read(data) is None

    with RunningUp(data, MAX_CONCURRENT_TASKS="8").ready() as again:
        assert again.state().dsn == dsn, "the port is kept"
        assert "limit 20 → 8, from MAX_CONCURRENT_TASKS" in again.output
        assert again.call("GET", f"/tasks/{accepted['task_id']}")["status"] == "completed"
        assert "the fake provider" in again.output
        invented = again.finished(again.call("POST", "/tasks", {"prompt": "hello"})["task_id"])
        assert invented["status"] == "completed"
        assert invented["result"]["model"].startswith("fake")
        assert again.end(signal.SIGTERM) == 0


def test_what_dies_runs_again(server_folder: Path) -> None:
    with RunningUp(server_folder / "data", workers=2).ready() as up:
        children = up.state().children
        assert set(children) == {"api", "worker 1", "worker 2", "fake provider"}
        for name in ("worker 1", "worker 2", "fake provider", "api"):
            os.kill(children[name][0], signal.SIGKILL)
        for name in children:
            up.says(rf"{name} ended \(SIGKILL\)")
            up.says(rf"{name} runs again")
        postmaster = all_pids(up)[-1]
        os.kill(postmaster, signal.SIGKILL)
        up.says("PostgreSQL runs again")
        assert all_pids(up)[-1] != postmaster

        def posted() -> Any:
            try:
                return up.call("POST", "/tasks", {"prompt": "hello"})
            except OSError:
                return None  # the API is still on its way

        task_id = until("the API to accept again", posted)["task_id"]
        assert up.finished(task_id)["status"] == "completed"


def test_nothing_outlives_an_up_that_is_killed(server_folder: Path) -> None:
    data = server_folder / "data"
    with RunningUp(data).ready() as up:
        pids = all_pids(up)
        task_id = up.call("POST", "/tasks", {"prompt": "hello"})["task_id"]
        up.process.kill()
        up.process.wait()
        for pid in pids:
            until(f"process {pid} to end", partial(gone, pid), 120)
    with RunningUp(data).ready() as again:
        assert again.finished(task_id)["status"] == "completed"


def test_a_database_of_ones_own_is_used(server_folder: Path, empty_database: str) -> None:
    with RunningUp(server_folder / "data", DATABASE_URL=empty_database).ready() as up:
        assert up.state().dsn == empty_database
        assert not (server_folder / "data" / "postgres").exists()
        assert up.finished(up.call("POST", "/tasks", {"prompt": "hello"})["task_id"])["status"] == "completed"


def test_the_go_worker_is_built_and_works(server_folder: Path) -> None:
    with RunningUp(server_folder / "data", kind="go").ready() as up:
        pid = up.state().children["worker"][0]
        command = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout
        assert command.strip() == str(server_folder / "data" / "bin" / "taskgate-worker")
        assert up.finished(up.call("POST", "/tasks", {"prompt": "hello"})["task_id"])["status"] == "completed"


def test_a_setting_that_is_wrong_is_told(server_folder: Path) -> None:
    with RunningUp(server_folder / "data", MAX_CONCURRENT_TASKS="many") as up:
        assert up.process.wait(60) == 1
    assert "MAX_CONCURRENT_TASKS" in up.output
    assert "Traceback" not in up.output


def test_data_that_cannot_be_a_folder(server_folder: Path) -> None:
    file = server_folder / "file"
    file.write_text("not a folder")
    for place in (file, file / "below"):
        with RunningUp(place) as up:
            assert up.process.wait(60) == 1
        (line,) = up.lines
        assert line.startswith(f"taskgate up: {place} cannot be the folder for the data: Not a directory."), line


def test_the_next_port_is_taken_unless_one_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKGATE_PORT", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalError, match=f"Port {port} on 127.0.0.1 is taken"):
            Supervisor(UpOptions(port=port))._address(Settings())
        monkeypatch.setenv("TASKGATE_PORT", str(port))
        with pytest.raises(LocalError, match=f"Port {port}"):
            Supervisor(UpOptions())._address(Settings())
        monkeypatch.delenv("TASKGATE_PORT")
        settings = Settings.model_construct(port=port, host="127.0.0.1", _fields_set=set())
        host, found = Supervisor(UpOptions())._address(settings)
        assert host == "127.0.0.1"
        assert port < found < port + 100


def test_a_second_signal_does_not_wait(server_folder: Path) -> None:
    with RunningUp(server_folder / "data").ready() as up:
        pids = all_pids(up)
        password = urlsplit(up.state().dsn).password
        assert password is not None
        assert password not in up.output
        with psycopg.connect(up.state().dsn) as connection:
            connection.execute(
                "INSERT INTO tasks (task_id, status, task_type, request, locked_until) "
                "VALUES ('a', 'running', 'llm', '{}', now() + interval '1 hour')"
            )
        os.kill(up.state().children["worker"][0], signal.SIGSTOP)  # it cannot drain
        up.process.send_signal(signal.SIGTERM)
        up.says(r"^Stopping: waiting for 1 running task, 30 s at most \(once more: at once\)")
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 128 + signal.SIGINT
        for pid in pids:
            until(f"process {pid} to end", partial(gone, pid), 120)
