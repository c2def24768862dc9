"""SIGTERM and SIGINT: the first asks for a drain, the second for the end."""

from __future__ import annotations

import asyncio
import signal
import sys


class Signals:
    """`drain` is set by the first signal, `now` by the second; `number` is the last one's."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        self.number = signal.SIGTERM
        self._loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            if sys.platform == "win32":
                signal.signal(each, lambda number, _frame: self._loop.call_soon_threadsafe(self._came, number))
            else:
                self._loop.add_signal_handler(each, self._came, each)

    def _came(self, number: int) -> None:
        self.number = signal.Signals(number)
        if self.drain.is_set():
            self.now.set()
        self.drain.set()
