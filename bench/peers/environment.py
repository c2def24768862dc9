"""Builds a peer's environment below the cache folder: a venv, an npm folder or a Go module, pinned, built once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.catalog import Peer

ADAPTERS = Path(__file__).with_name("adapters")
PYTHONS = [f"3.{minor}" for minor in range(11, 16)]


class Unavailable(Exception):
    """The peer cannot be had on this machine; the text says why and what to do."""


def prepare(peer: Peer, cache: Path) -> list[str]:
    """Answers the command that runs the peer's adapter. Raises Unavailable when its packages cannot be installed."""
    for tool in peer.tools:
        if shutil.which(tool.program) is None:
            raise Unavailable(f"{tool.program} is missing: {tool.remedy}")
    wanted = "\n".join((peer.runtime, peer.python, *peer.packages))
    folder = cache / f"{peer.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    build = {"python": _python, "node": _node, "go": _go}[peer.runtime]
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"{peer.name}: installing {', '.join(peer.packages)} …", file=sys.stderr)
        build(peer, folder)
        (folder / "ready").write_text(wanted + "\n")
    return _command(peer, folder)


def _command(peer: Peer, folder: Path) -> list[str]:
    match peer.runtime:
        case "python":
            return [str(folder / "bin/python"), str(ADAPTERS / peer.adapter)]
        case "node":  # a module finds its packages beside itself
            shutil.copy(ADAPTERS / peer.adapter, folder)
            return [str(folder / "node_modules/node/bin/node"), str(folder / peer.adapter)]
        case _:
            shutil.copy(ADAPTERS / peer.adapter, folder / "main.go")
            _run(["go", "build", "-o", "peer", "."], folder)
            return [str(folder / "peer")]


def _python(peer: Peer, folder: Path) -> None:
    _run([_interpreter(peer.python), "-m", "venv", str(folder)], folder)
    _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *peer.packages], folder)


def _node(peer: Peer, folder: Path) -> None:
    _run(["npm", "init", "--yes"], folder)
    _run(["npm", "install", "--no-audit", "--no-fund", "--save-exact", *peer.packages], folder)


def _go(peer: Peer, folder: Path) -> None:
    _run(["go", "mod", "init", "peer"], folder)
    _run(["go", "get", *peer.packages], folder)


def _interpreter(least: str) -> str:
    """This interpreter when it is new enough, else the oldest on the machine that is."""
    if _version(least) <= sys.version_info[:2]:
        return sys.executable
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS[PYTHONS.index(least) :]:
        found = shutil.which(f"python{version}")
        for candidate in ([found] if found else []) + sorted(map(str, managed.glob(f"{version}.*/bin/python3"))):
            if subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
                return candidate
    raise Unavailable(f"it needs Python {least} or newer: put one on the PATH as python{least}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _run(command: Sequence[str], folder: Path) -> None:
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is missing: install it, or leave this peer out") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-800:]
        raise Unavailable(f"`{' '.join(command)}` failed:\n{words}")
