"""Media in a folder that workers and API share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from taskgate.media.errors import StoreFailed
from taskgate.threads import DaemonThreads

THREADS = 4
"""Daemons: a network drive that hangs cannot keep the process from ending."""
PIECE_BYTES = 1024**2


class Files:
    """One file an object, under the random key that its upload began with."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._threads = DaemonThreads(THREADS)

    async def open(self, key: str) -> FileWriter:
        path = self._folder / key
        return FileWriter(path, await self._beside(_create, path), self._beside)

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        descriptor = await self._beside(_open, self._folder / key)
        try:
            at = start
            while at < end:
                piece = await self._beside(_pread, (descriptor, min(PIECE_BYTES, end - at), at))
                if not piece:
                    raise StoreFailed(f"the file {key} is shorter than it was")
                yield piece
                at += len(piece)
        finally:
            os.close(descriptor)

    async def delete(self, key: str) -> None:
        await self._beside(_delete, self._folder / key)

    async def _beside(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """`function(argument)` in a thread. Raises StoreFailed for what the file system says."""
        value, error = await self._threads.submit(function, argument)
        if isinstance(error, OSError):
            raise StoreFailed(f"{error.strerror or error}: {error.filename or self._folder}") from error
        if error is not None:
            raise error
        return value


class FileWriter:
    def __init__(self, path: Path, descriptor: int, beside: Callable[[Callable[[Any], Any], Any], Any]) -> None:
        self._path, self._descriptor, self._beside = path, descriptor, beside

    async def write(self, piece: bytes) -> None:
        await self._beside(_write, (self._descriptor, piece))

    async def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        await self._beside(_sync, (descriptor, self._path.parent))

    async def abort(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        await self._beside(_give_up, (descriptor, self._path))


def _create(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _pread(call: tuple[int, int, int]) -> bytes:
    return os.pread(*call)


def _write(call: tuple[int, bytes]) -> None:
    descriptor, piece = call
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync(call: tuple[int, Path]) -> None:
    """The bytes, and the file's name, are on disk when this returns."""
    descriptor, folder = call
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _give_up(call: tuple[int, Path]) -> None:
    descriptor, path = call
    if descriptor >= 0:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _delete(path)


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
