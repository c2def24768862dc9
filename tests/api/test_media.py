"""GET /tasks/{id}/media/{name}: whole, in ranges, for its tenant alone, streamed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from taskgate.media.backend import open_backend
from taskgate.media.place import parse_place
from taskgate.media.upload import MediaStore
from taskgate.protocol.calls import Calls, NewTask
from taskgate.protocol.media import MediaCalls
from taskgate.task import MediaRef
from tests.api.api_process import ApiProcess

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]


class Holder:
    """A running task, as an upload sees it."""

    def __init__(self, task_id: str, token: int) -> None:
        self.task_id, self.token = task_id, token

    async def kept(self, call: Any) -> Any:
        return await call()


async def keep(
    connection: Connection, content: bytes, *, task_id: str = "a", name: str = "video", mime: str = "video/mp4",
    tenant: str = "", where: str = "postgres",
) -> MediaRef:  # fmt: skip
    """A completed task that stored something."""
    calls = Calls(connection)
    await calls.enqueue([NewTask(task_id, "llm", "{}")], tenant=tenant)
    (claimed,) = (await calls.claim("w", 1, [], 60, None)).tasks
    place = parse_place(where)
    store = MediaStore(MediaCalls(connection), place, open_backend(place), 10**9)
    upload = await store.begin(Holder(task_id, claimed.token), name, mime)
    await upload.write(content)
    ref = await upload.finish()
    await calls.complete([(task_id, claimed.token, "{}")])
    return ref


@pytest.mark.parametrize("kind", ["postgres", "file"])
async def test_all_of_it_and_any_range(database: str, connection: Connection, tmp_path: Path, kind: str) -> None:
    where = "postgres" if kind == "postgres" else f"file://{tmp_path}"
    content = os.urandom(262_144 * 5 + 17)
    ref = await keep(connection, content, where=where)
    with ApiProcess(database, TASKGATE_MEDIA_STORE=where) as api:
        async with api.client() as client:
            got = await client.get(ref["url"])
            assert (got.status_code, got.content) == (200, content)
            etag = got.headers["etag"]
            assert etag == f'"{hashlib.sha256(content).hexdigest()}"'
            assert got.headers["content-type"] == "video/mp4"
            assert got.headers["content-disposition"] == 'inline; filename="video.mp4"'
            assert got.headers["x-content-type-options"] == "nosniff"
            size = len(content)
            for text, part in {
                "bytes=0-0": (0, 1),
                "bytes=262143-262144": (262_143, 262_145),
                "bytes=262144-": (262_144, size),
                "bytes=-5": (size - 5, size),
                f"bytes=-{size + 9}": (0, size),
                f"bytes=5-{size + 9}": (5, size),
                "bytes=1-1048577": (1, 1_048_578),
            }.items():
                got = await client.get(ref["url"], headers={"range": text})
                assert (got.status_code, got.content) == (206, content[slice(*part)]), text
                assert got.headers["content-range"] == f"bytes {part[0]}-{part[1] - 1}/{size}"
            for text in ("bytes=5-4", "bytes=0-0,5-6", "items=0-1", "bytes=-", "bytes=a-b"):
                assert (await client.get(ref["url"], headers={"range": text})).status_code == 200, text
            for text in (f"bytes={size}-", "bytes=-0"):
                got = await client.get(ref["url"], headers={"range": text})
                assert (got.status_code, got.headers["content-range"]) == (416, f"bytes */{size}"), text
                assert got.json()["code"] == "range_not_satisfiable"
            for tag, status in ((etag, 206), ('"other"', 200), ("Sun, 29 Nov 2026 00:00:00 GMT", 200)):
                got = await client.get(ref["url"], headers={"range": "bytes=0-0", "if-range": tag})
                assert got.status_code == status
            got = await client.get(ref["url"], headers={"if-none-match": f'"x", W/{etag}'})
            assert (got.status_code, got.content) == (304, b"")
            got = await client.head(ref["url"], headers={"range": "bytes=0-0"})
            assert (got.status_code, got.content, got.headers["content-length"]) == (200, b"", str(size))


async def test_nothing_and_empty(api: ApiProcess, connection: Connection) -> None:
    ref = await keep(connection, b"", mime="text/html", name="page")
    async with api.client() as client:
        got = await client.get(ref["url"])
        assert (got.status_code, got.content) == (200, b"")
        assert got.headers["content-disposition"] == 'attachment; filename="page.html"'
        assert (await client.get(ref["url"], headers={"range": "bytes=0-"})).status_code == 416
        for path in ("/tasks/a/media/other", "/tasks/b/media/page", "/tasks/a%00/media/page", "/tasks/a/media/%2E%2E"):
            got = await client.get(path)
            assert (got.status_code, got.json()["code"]) == (404, "media_not_found"), path
        assert (await client.delete(ref["url"])).status_code == 405
        assert (await client.get(ref["url"], params={"x": "1"})).status_code == 422


async def test_odd_task_ids(api: ApiProcess, connection: Connection) -> None:
    ref = await keep(connection, b"x", task_id="a/media/b c?d", name="it.bin", mime="application/octet-stream")
    async with api.client() as client:
        got = await client.get(ref["url"])
        assert (got.status_code, got.content) == (200, b"x")
        assert got.headers["content-disposition"] == 'attachment; filename="it.bin"'


async def test_only_its_tenant(database: str, connection: Connection) -> None:
    ref = await keep(connection, b"acme's", tenant="acme")
    with ApiProcess(database, TASKGATE_API_KEYS="acme:s1, other:s2, ops:s3:admin") as api:
        for key, status in (("s1", 200), ("s2", 404), ("s3", 200), ("wrong", 401)):
            async with api.client(key) as client:
                assert (await client.get(ref["url"])).status_code == status
                assert (await client.head(ref["url"])).status_code == status


async def test_what_is_kept_elsewhere_or_lost(database: str, connection: Connection, tmp_path: Path) -> None:
    ref = await keep(connection, b"x" * 10, where=f"file://{tmp_path}/one")
    with ApiProcess(database, TASKGATE_MEDIA_STORE=f"file://{tmp_path}/two") as api:
        async with api.client() as client:
            got = await client.get(ref["url"])
            assert (got.status_code, got.json()["code"]) == (500, "media_elsewhere")
            assert "TASKGATE_MEDIA_STORE" in got.json()["detail"]
    (file,) = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    file.unlink()
    with ApiProcess(database, TASKGATE_MEDIA_STORE=f"file://{tmp_path}/one") as api:
        async with api.client() as client:
            got = await client.get(ref["url"])
            assert (got.status_code, got.json()["code"]) == (503, "media_store_failed")


async def test_200_mb_go_out_with_little_memory(api: ApiProcess, connection: Connection) -> None:
    ref = await keep(connection, bytes(range(256)) * 819_200)
    async with api.client() as client:
        await client.get(ref["url"], headers={"range": "bytes=0-4000000"})
        before = api.resident_mib
        digest = hashlib.sha256()
        async with client.stream("GET", ref["url"]) as got:
            async for piece in got.aiter_bytes():
                digest.update(piece)
    assert digest.hexdigest() == ref["sha256"]
    print(f"{before:.1f} MiB before, {api.peak_mib:.1f} MiB at most")
    assert api.peak_mib - before < 40
