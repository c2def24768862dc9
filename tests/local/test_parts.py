"""The parts of `taskgate up` one by one: state file, lock, supervised programs, the feed, the environment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from taskgate.local import state
from taskgate.local.account import LocalError
from taskgate.local.feed import Change, Tracker, count_running, line, summary
from taskgate.local.folder import FolderLock, end_leftovers
from taskgate.local.ports import KeptPort, can_bind, free_port
from taskgate.local.process import ChildProcess
from taskgate.local.provider import without_proxy_for_loopback
from taskgate.local.service import Service, notable
from taskgate.local.terminal import proxy_catches_loopback, stopping
from taskgate.protocol.calls import Calls, NewTask, WorkerInfo
from taskgate.protocol.connect import Database, connect
from tests.local.helpers import alive
from tests.waiting import until

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def a_state(data: Path, pid: int, started: str, **children: tuple[int, str]) -> state.State:
    return state.State(
        pid, started, "http://127.0.0.1:8000", "postgresql://x", str(data), "a model", children=dict(children)
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    default = tmp_path / "default"
    monkeypatch.setattr(state, "default_data_dir", lambda: default)
    return default


def test_a_running_up_is_found_through_the_pointer(place: Path, tmp_path: Path) -> None:
    assert state.find() is None
    data = tmp_path / "elsewhere"
    data.mkdir()
    started = state.process_started(os.getpid())
    assert started is not None
    mine = a_state(data, os.getpid(), started, worker=(1, "2"))
    state.write(mine)
    assert state.find() == mine
    assert stat.S_IMODE((data / "state.json").stat().st_mode) == 0o600  # it holds the password
    state.clear(data)
    assert state.find() is None


def test_a_port_is_kept_while_it_is_free(tmp_path: Path) -> None:
    kept = KeptPort(tmp_path / "port")
    port = kept.free_again()
    kept.keep(port)
    assert kept.free_again() == port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert kept.free_again() != port
    (tmp_path / "port").write_text("99999999\n")
    assert can_bind("127.0.0.1", kept.free_again())


def test_a_state_of_a_process_that_is_gone_is_not_found(place: Path) -> None:
    place.mkdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    state.write(a_state(place, ended.pid, "123"))
    assert state.find() is None
    state.write(a_state(place, os.getpid(), "another start"))  # the pid went to somebody else
    assert state.find() is None
    (place / "state.json").write_text("{broken")
    assert state.find() is None


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert state.default_data_dir() == Path("/var/lib/taskgate")  # PostgreSQL's user cannot reach /root
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state.default_data_dir() == tmp_path / ".local/share/taskgate"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert state.default_data_dir() == tmp_path / ".local/share/taskgate"
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert state.default_data_dir() == Path("/somewhere/taskgate")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert state.default_data_dir() == tmp_path / "Library/Application Support/taskgate"
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(LocalError, match=r'with --data \(make up ARGS="--data DIR"\)'):
        state.default_data_dir()


def test_a_second_up_on_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    with pytest.raises(LocalError, match=rf"runs already on .* \(process {os.getpid()}\)"):
        FolderLock(tmp_path)
    first.release()
    FolderLock(tmp_path).release()


def test_leftovers_end_and_strangers_live(tmp_path: Path) -> None:
    left, stranger = (subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL) for _ in range(2))
    try:
        started = state.process_started(left.pid)
        assert started is not None
        said: list[str] = []
        written = a_state(tmp_path, 1, "x", worker=(left.pid, started), api=(stranger.pid, "an earlier one"))
        state._write_private(tmp_path / "state.json", written.__dict__)
        end_leftovers(tmp_path, said.append)
        assert left.wait(60) == -signal.SIGTERM
        assert stranger.poll() is None
        assert said == [f"ending worker (process {left.pid}), which an earlier up left running"]
        assert state.read(tmp_path) is None
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from taskgate.local.process import ChildProcess
child = ChildProcess([sys.executable, "-c", {SLEEP!r}], env=os.environ)
print(child.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert os.getsid(child) == child  # a Ctrl-C in the terminal does not reach it
    parent.kill()
    parent.communicate()
    until("the child to end", lambda: not alive(child))


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(tmp_path: Path) -> None:
    child = ChildProcess(
        ["/bin/sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait; wait"],
        env={"PATH": os.defpath},
        output=subprocess.PIPE,
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    assert child.stop(0.2) == -signal.SIGKILL
    child.stdout.close()
    until("the grandchild to end", lambda: not alive(grandchild))


def test_a_service_that_dies_runs_again_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    script = """
import json
for _ in range(3):
    print(json.dumps({"level": "error", "event": "gone", "why": "test"}))
raise SystemExit(3)
"""
    service = Service("worker 1", [sys.executable, "-c", script], os.environ, tmp_path, said.append)
    service.start()
    first = service.pid
    until("the second run", service.watch)
    assert service.pid != first
    service.wait_stopped(time.monotonic() + 60)
    assert said.count("worker 1 | error gone why=test") == 1  # the same again is in the file alone
    assert "worker 1 ended (exit code 3); starting it again in 1 s" in said
    assert (tmp_path / "worker-1.log").read_text().count("gone") == 6


def test_readiness_is_a_line_of_output(tmp_path: Path) -> None:
    service = Service("x", [sys.executable, "-c", SLEEP], os.environ, tmp_path, lambda _: None)
    service.start()
    try:
        assert service.first_line(lambda text: text if text == "ready" else None, lambda: False) == "ready"
        assert service.first_line(lambda text: None, cancelled=lambda: True) is None
    finally:
        service.kill()


def test_only_warnings_and_errors_of_a_log_are_shown() -> None:
    assert notable('{"level": "info", "event": "claimed"}') is None
    assert notable("plain text") is None
    assert notable("[1, 2]") is None
    assert notable('{"level":"WARN","msg":"slow","seconds":3}') == "warn slow seconds=3"
    assert notable('{"level":"warning","event":"x","traceback":"long","error":"e"}') == "warning x error=e"
    assert notable('{"level":"error","event":"x","exception":"Trace\\nValueError: y"}') == "error x ValueError: y"


def test_the_end_says_what_it_waits_for() -> None:
    assert stopping(0, 30) == "Stopping (once more: at once) ..."
    assert stopping(1, 0.5) == "Stopping: waiting for 1 running task, 0.5 s at most (once more: at once) ..."
    assert stopping(3, 30) == "Stopping: waiting for 3 running tasks, 30 s at most (once more: at once) ..."
    assert stopping(None, 30).startswith("Stopping: waiting for the running tasks, 30 s at most")


def test_nobody_counts_where_no_database_is() -> None:
    assert count_running(Database(f"postgresql://u@127.0.0.1:{free_port()}/x")) is None


def test_loopback_is_exempt_from_proxies() -> None:
    env = without_proxy_for_loopback({"HTTP_PROXY": "http://dead:1", "NO_PROXY": "corp.example,127.0.0.1"})
    assert env["NO_PROXY"] == env["no_proxy"] == "corp.example,127.0.0.1,localhost,::1"
    assert proxy_catches_loopback({"http_proxy": "http://dead:1"}.get)
    assert not proxy_catches_loopback({"HTTP_PROXY": "http://dead:1"}.get)
    assert not proxy_catches_loopback({"all_proxy": "x", "no_proxy": "localhost, 127.0.0.1"}.get)


def test_a_free_port_is_free_and_outside_the_outgoing_range() -> None:
    port = free_port()
    assert can_bind("127.0.0.1", port)
    if sys.platform == "linux":
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        assert not first <= port <= last


async def test_the_feed_tells_each_change_once(database: str) -> None:
    connection = await connect(Database(database), "test")
    calls = Calls(connection)
    with contextlib.suppress(Exception):
        await calls.register_worker(WorkerInfo("w", "python", "0", "h", 1, 5, {"llm": (None, "")}))

    def task(task_id: str) -> NewTask:
        return NewTask(task_id, "llm", '{"prompt": "x"}')

    old, new, burst = uuid.uuid4().hex, uuid.uuid4().hex, [uuid.uuid4().hex for _ in range(450)]
    await calls.enqueue([task(old)])
    tracker = Tracker(calls)
    assert await tracker.changes() == []  # what was there is no news

    await calls.enqueue([task(new)])
    assert [line(change) for change in await tracker.changes()] == [f"llm {new} accepted"]
    assert await tracker.changes() == []

    claimed = (await calls.claim("w", 2, [], 60, None)).tasks
    assert {line(change) for change in await tracker.changes()} == {f"llm {old} running", f"llm {new} running"}

    await calls.complete([(t.task_id, t.token, '{"text": "Paris.\\nYes"}') for t in claimed if t.task_id == new])
    (completed,) = await tracker.changes()
    assert line(completed).startswith(f"llm {new} completed in ")
    assert line(completed).endswith(": Paris. Yes")

    await calls.enqueue([task(task_id) for task_id in burst])
    many = await tracker.changes()
    assert summary(many) == "450 accepted"
    assert await tracker.changes() == []
    assert isinstance(many[0], Change)
    await connection.close()
