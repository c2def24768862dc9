"""SIGTERM and SIGINT: the first asks for a drain, the second for the end.

They are heard in the watchdog's thread, so that a handler that blocks the event loop cannot keep them up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """`drain` is set by the first signal, `now` by the second, both on the event loop; `number` is the last one's.

    `listen` must be called again and again by some other thread. Make one in the main thread.
    """

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        self.number = signal.SIGTERM
        self.heard = 0
        """So many signals came, whether or not the event loop has noticed."""
        self._loop = asyncio.get_running_loop()
        self._written = self._called = 0
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        for each in NUMBERS:
            signal.signal(each, self._call)
        # written to at once, even while C code keeps the interpreter from calling `_call`
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget)  # a child of a handler shares the socket

    def _call(self, number: int, _frame: FrameType | None) -> None:
        """The second way, where a library has taken the wakeup file descriptor for itself."""
        self._called += 1
        self.number = signal.Signals(number)
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def listen(self, seconds: float) -> None:
        """Wait for a signal, `seconds` at most, and pass on to the event loop what came."""
        self._reader.settimeout(seconds)
        try:
            came = [byte for byte in self._reader.recv(1024) if byte in NUMBERS]
        except TimeoutError:
            came = []
        if came:
            self._written += len(came)
            self.number = signal.Signals(came[-1])
        while self.heard < max(self._written, self._called):
            self.heard += 1
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                self._loop.call_soon_threadsafe(self._came)

    def _came(self) -> None:
        if self.drain.is_set():
            self.now.set()
        self.drain.set()


def _forget() -> None:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.set_wakeup_fd(-1)
        for each in NUMBERS:
            signal.signal(each, signal.SIG_DFL)
