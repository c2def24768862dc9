"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from taskgate.local.account import LocalError


def can_bind(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A free TCP port of 127.0.0.1 outside the range that outgoing connections use.

    A client that reconnects to a port of that range while the server restarts can connect to itself and hold
    the port. Raises LocalError when none is found.
    """
    for _ in range(200):
        port = random.randrange(15000, 32000)
        if can_bind("127.0.0.1", port):
            return port
    raise LocalError("No free TCP port was found on 127.0.0.1.")


class KeptPort:
    """A port that a server gets again at its next start, remembered in a file, so that URLs with it stay right."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def free_again(self) -> int:
        """The port of the last time, else (it is taken, or there was none) another free one. Raises LocalError."""
        with contextlib.suppress(OSError, ValueError):
            port = int(self._file.read_text(encoding="ascii"))
            if 0 < port < 65536 and can_bind("127.0.0.1", port):
                return port
        return free_port()

    def keep(self, port: int) -> None:
        """Remember it for the next time."""
        with contextlib.suppress(OSError):
            self._file.write_text(f"{port}\n", encoding="ascii")
