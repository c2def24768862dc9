"""A child process that does not outlive its parent, not even one that is killed.

Each child has a session of its own, so that a Ctrl-C in the terminal reaches only the parent, which then
stops its children in order. A tiny shell holds the read end of a pipe whose write end only the parent has:
when the parent is gone, the read ends and the shell stops the child. That works on Linux and macOS alike,
and unlike PR_SET_PDEATHSIG it does not depend on the thread that started the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from taskgate.local.account import Account

# $1 process id, $2 signal that asks it to end, $3 seconds until its whole group is killed
GUARD = """
read -r _
kill -"$2" "$1" || exit 0
left="$3"
while [ "$left" -gt 0 ] && kill -0 "$1"; do sleep 1; left=$((left - 1)); done
kill -KILL -- "-$1"
"""


class ChildProcess:
    """Starts `argv` at once. Raises OSError when the program cannot be started."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        account: Account | None = None,
        output: int | IO[bytes] = subprocess.DEVNULL,
        orphan_signal: signal.Signals = signal.SIGTERM,
        orphan_grace_seconds: int = 40,
    ) -> None:
        self.process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        ending = [str(self.pid), orphan_signal.name.removeprefix("SIG"), str(orphan_grace_seconds)]
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "taskgate-guard", *ending],
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        """What the child writes, when it was started with `output=subprocess.PIPE`."""
        return self.process.stdout

    def poll(self) -> int | None:
        """The exit code, None while it runs; negative: the signal that ended it."""
        code = self.process.poll()
        if code is not None:
            self._dismiss_guard()
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        code = self.process.wait(timeout)
        self._dismiss_guard()
        return code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process alone; nothing happens when it has ended."""
        self.process.send_signal(number)

    def kill_group(self) -> None:
        """Kills the process and whatever it started in its session."""
        if self.process.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self.process.kill()

    def stop(self, grace: float, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks the process to end, kills it after `grace` seconds, answers its exit code."""
        self.send(number)
        try:
            return self.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill_group()
            return self.wait()

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.wait()
            if guard.stdin is not None:
                guard.stdin.close()
