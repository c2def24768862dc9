"""Runs a peer's adapter: a program that is told what to do by a verb, and tells what it did in JSON lines."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from taskgate.local.process import ChildProcess

END = {"event": "end"}


class AdapterError(Exception):
    """The adapter failed, or did not say in time what it was waited for."""


class Adapter:
    """One run of an adapter, in the background."""

    def __init__(self, command: Sequence[str], verb: str, environment: Mapping[str, str]) -> None:
        self._what = f"{os.path.basename(command[-1])} {verb}"
        self._signs: queue.Queue[dict[str, Any]] = queue.Queue()
        self._words: deque[str] = deque(maxlen=30)
        self._child = ChildProcess([*command, verb], env=os.environ | environment, output=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            text = line.decode(errors="replace").strip()
            if text.startswith('{"event"') and text.endswith("}"):
                self._signs.put(json.loads(text))
            elif text:
                self._words.append(text)
        self._signs.put(END)

    def wait(self, event: str, seconds: float) -> dict[str, Any]:
        """The next sign of this kind; others are dropped. Raises AdapterError when it does not come."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                sign = self._signs.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AdapterError(f"{self._what}: no `{event}` within {seconds:g} s.{self.said()}") from None
            if sign["event"] == event:
                return sign
            if sign is END:
                raise AdapterError(f"{self._what} ended before `{event}`.{self.said()}")

    def rest(self) -> list[dict[str, Any]]:
        """The signs that came and were not asked for; complete after the end."""
        self._reader.join(0 if self._child.poll() is None else 5)
        signs = []
        while not self._signs.empty():
            signs.append(self._signs.get())
        return signs

    def said(self) -> str:
        """Its last line that was no sign; all of them go to standard error."""
        self._reader.join(1)
        print(*self._words, sep="\n", file=sys.stderr)
        return f" Its last words: {self._words[-1]}" if self._words else ""

    def ended(self, seconds: float) -> None:
        """Waits for the end. Raises AdapterError when it failed."""
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AdapterError(f"{self._what} did not end within {seconds:g} s.{self.said()}") from None
        self._reader.join(5)
        if code:
            raise AdapterError(f"{self._what} ended with exit code {code}.{self.said()}")

    def stop(self) -> None:
        self._child.stop(10.0)
        self._child.kill_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def running(command: Sequence[str], verb: str, environment: Mapping[str, str]) -> Iterator[Adapter]:
    with Adapter(command, verb, environment) as adapter:
        yield adapter


def done(command: Sequence[str], verb: str, environment: Mapping[str, str], seconds: float = 300.0) -> Adapter:
    """Runs the adapter to its end."""
    adapter = Adapter(command, verb, environment)
    try:
        adapter.ended(seconds)
    finally:
        adapter.stop()
    return adapter
