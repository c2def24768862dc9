"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import random
import socket

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
