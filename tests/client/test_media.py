"""Client.media and `taskgate get --media`: whole, resumed where it broke off, checked by its hash."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from taskgate.async_client import AsyncClient
from taskgate.client import Client
from taskgate.errors import NotFound, ServerError
from taskgate.protocol.connect import Database, connect
from tests.api.api_process import ApiProcess
from tests.api.test_media import keep
from tests.programs import TASKGATE, environment

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

CONTENT = os.urandom(3_000_000)


async def kept(database: str, content: bytes = CONTENT) -> None:
    connection = await connect(Database(database), "test")
    await keep(connection, content, task_id="a b")
    await connection.close()


class Cutter:
    """Between client and API: breaks each of the first answers off after so many bytes of its body."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port, self._cuts = port, cuts
        self.ranges: list[str | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        lines = request.decode().lower().split("\r\n")
        self.ranges.append(next((line.partition(": ")[2] for line in lines if line.startswith("range:")), None))
        inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
        outer.write(request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        writer.write(await inner.readuntil(b"\r\n\r\n"))
        left = self._cuts.pop(0) if self._cuts else -1
        while left and (piece := await inner.read(65_536 if left < 0 else min(left, 65_536))):
            writer.write(piece)
            await writer.drain()
            left -= len(piece) if left > 0 else 0
        writer.close()
        outer.close()


async def test_it_goes_on_where_it_broke_off(database: str, tmp_path: Path) -> None:
    await kept(database)
    with ApiProcess(database) as api:
        cutter = Cutter(int(api.url.rsplit(":", 1)[1]), [1_000_000, 500_000])
        server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncClient(url) as client, client.media("a b", "video") as media:
            assert (media.mime, media.size) == ("video/mp4", len(CONTENT))
            assert media.sha256 == hashlib.sha256(CONTENT).hexdigest()
            await media.save(tmp_path / "one.mp4")
        assert (tmp_path / "one.mp4").read_bytes() == CONTENT
        assert cutter.ranges == [None, "bytes=1000000-", "bytes=1500000-"]

        def blocking() -> bytes:
            with Client(url) as client, client.media("a b", "video") as media:
                return b"".join(media)

        cutter._cuts = [2_999_999]
        assert await asyncio.to_thread(blocking) == CONTENT
        server.close()


async def test_what_is_not_there_and_what_changed(database: str, tmp_path: Path) -> None:
    await kept(database)
    with ApiProcess(database) as api:
        async with AsyncClient(api.url) as client:
            with pytest.raises(NotFound):
                async with client.media("a b", "other"):
                    pass
            connection = await connect(Database(database), "test")
            await connection.execute("UPDATE media_chunks SET data = set_byte(data, 5, (get_byte(data, 5) + 1) % 256)")
            await connection.close()
            with pytest.raises(ServerError, match="hash"):
                async with client.media("a b", "video") as media:
                    await media.save(tmp_path / "bad.mp4")
            assert os.listdir(tmp_path) == [], "a file is there only when it is whole"
            with pytest.raises(ValueError, match="name"):
                client.media("a b", "../x")


async def test_the_command(database: str, tmp_path: Path) -> None:
    await kept(database)
    with ApiProcess(database) as api:

        def taskgate(*arguments: str) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [TASKGATE, "get", "a b", *arguments],
                env=environment(TASKGATE_URL=api.url),
                cwd=tmp_path,
                capture_output=True,
                timeout=60,
            )

        def check() -> None:
            done = taskgate("--media", "video", "--json")
            told = json.loads(done.stdout)
            assert (done.returncode, told["file"], told["bytes"]) == (0, "video.mp4", len(CONTENT))
            assert (tmp_path / "video.mp4").read_bytes() == CONTENT
            again = taskgate("--media", "video")
            assert again.returncode == 1
            assert b"video.mp4 exists" in again.stderr
            assert b"--output" in again.stderr
            assert taskgate("--media", "video", "-o", "-").stdout == CONTENT
            assert taskgate("--media", "video", "-o", "other.bin").returncode == 0
            assert taskgate("--media", "nothing").returncode == 1
            assert taskgate("-o", "x").returncode == 2
            assert taskgate("--media", "video", "-o", "no/such/folder").returncode == 1

        await asyncio.to_thread(check)
