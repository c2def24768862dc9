"""Media that handlers store: by a real worker, into each store, and what becomes of them when things go wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskgate.media.backend import open_backend, read_media
from taskgate.media.collect import collect_media
from taskgate.media.place import parse_place
from taskgate.protocol.media import MediaCalls, StoredMedia
from tests.processes import Table, WorkerProcess, eventually
from tests.worker.test_memory import resident

TYPES = "media,media-sync"


def expected(size: int, pieces: int) -> tuple[str, int]:
    digest = hashlib.sha256()
    for n in range(pieces):
        digest.update(bytes([n % 256]) * size)
    return digest.hexdigest(), size * pieces


async def stored(table: Table, task_id: str, name: str = "video") -> StoredMedia:
    found = await MediaCalls(table.sql).find(task_id, name)
    assert found is not None
    return found


async def content_digest(table: Table, media: StoredMedia, where: str) -> str:
    digest = hashlib.sha256()
    backend = open_backend(parse_place(where))
    async for piece in read_media(MediaCalls(table.sql), backend, media, 0, media.bytes):
        assert len(piece) <= 1024**2
        digest.update(piece)
    return digest.hexdigest()


def files_in(where: str) -> list[Path]:
    return [path for path in Path(where.removeprefix("file://")).rglob("*") if path.is_file()]


@pytest.fixture(params=["postgres", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "postgres" if request.param == "postgres" else f"file://{tmp_path}/media"


async def test_what_is_stored_is_what_was_made(
    table: Table, start_worker: Callable[..., WorkerProcess], where: str
) -> None:
    start_worker(TYPES, TASKGATE_MEDIA_STORE=where)
    request = {"size": 300_001, "pieces": 9}
    (a,) = await table.add("media", [request])
    (b,) = await table.add("media-sync", [request])
    rows = await table.final([a, b])
    digest, size = expected(300_001, 9)
    ref = {"sha256": digest, "bytes": size, "mime": "video/mp4"}
    assert json.loads(rows[a]["result"]) == {**ref, "url": f"/tasks/{a}/media/video"}
    video, note = json.loads(rows[b]["result"])
    assert video == {**ref, "url": f"/tasks/{b}/media/video"}
    assert note["bytes"] == 6
    first, second = await stored(table, a), await stored(table, b)
    assert first.blob == second.blob, "the same content is there once"
    assert (first.sha256, first.bytes, first.mime) == (digest, size, "video/mp4")
    assert first.store == where
    assert await content_digest(table, first, where) == digest
    await table.sql.execute("DELETE FROM tasks")
    assert await collect_media(MediaCalls(table.sql), where, open_backend(parse_place(where)), grace=0) >= 2
    assert await table.sql.fetchval("SELECT count(*) FROM media_blobs") == 0
    if where != "postgres":
        assert files_in(where) == []


async def test_an_upload_that_breaks_off_leaves_nothing(
    table: Table, start_worker: Callable[..., WorkerProcess], where: str
) -> None:
    start_worker(TYPES, TASKGATE_MEDIA_STORE=where)
    (a,) = await table.add("media", [{"size": 2_000_000, "pieces": 3, "stop": 2}])
    assert (await table.final([a]))[a]["error"] == "the source broke off"

    async def nothing() -> bool:
        return bool(await table.sql.fetchval("SELECT count(*) = 0 FROM media_blobs"))

    await eventually("the blob to be gone", nothing)
    if where != "postgres":
        assert files_in(where) == []


async def test_a_lost_task_gets_nothing(
    table: Table, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    worker = start_worker(TYPES)
    go = tmp_path / "go"
    (a,) = await table.add("media", [{"size": 10, "pieces": 1, "file": str(go)}])

    async def is_waiting() -> bool:
        return bool((await table.row(a))["progress"] == '"waiting"')

    await eventually("the handler to wait", is_waiting)
    taken = "UPDATE tasks SET claim_token = nextval('claim_token_seq'), worker_id = 'another' WHERE task_id = $1"
    await table.sql.execute(taken, a)
    go.touch()
    await worker.event("result_refused")
    assert await MediaCalls(table.sql).find(a, "video") is None
    assert (await table.row(a))["status"] == "running", "it is somebody else's"


async def test_a_medium_that_is_too_large(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    start_worker(TYPES, TASKGATE_MEDIA_MAX_STORE_BYTES="100000")
    a, b = await table.add("media", [{"size": 50_000, "pieces": 2}, {"size": 50_001, "pieces": 2}])
    rows = await table.final([a, b])
    assert rows[a]["status"] == "completed"
    assert (rows[b]["status"], rows[b]["error_code"]) == ("failed", "media_too_large")


async def test_a_folder_that_cannot_be_written(
    table: Table, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    (tmp_path / "media").write_text("a file where the folder should be")
    start_worker(TYPES, TASKGATE_MEDIA_STORE=f"file://{tmp_path}/media", TASKGATE_MAX_ATTEMPTS="1")
    (a,) = await table.add("media", [{"size": 10, "pieces": 1}], max_attempts=1)
    row = (await table.final([a]))[a]
    assert (row["status"], row["error_code"]) == ("failed", "media_store")
    assert "the media store failed" in row["error"]


async def test_200_mb_pass_through_little_memory(
    table: Table, start_worker: Callable[..., WorkerProcess], where: str
) -> None:
    worker = start_worker(TYPES, TASKGATE_MEDIA_STORE=where, TASKGATE_LEASE_SECONDS="30")
    (warm,) = await table.add("media", [{"size": 1_000_000, "pieces": 3}])
    await table.final([warm])
    before = resident(worker.pid)
    (a,) = await table.add("media", [{"size": 1_000_000, "pieces": 200}])
    row = (await table.final([a]))[a]
    assert row["status"] == "completed"
    peak = _peak(worker.pid)
    print(f"{where[:8]}: {before:.1f} MiB before, {peak:.1f} MiB at most")
    assert json.loads(row["result"])["sha256"] == expected(1_000_000, 200)[0]
    assert peak - before < 40


def _peak(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


async def test_in_a_handlers_own_test() -> None:
    from taskgate.testing import run
    from tests.worker.app import media, media_sync

    outcome = await run(media, {"size": 3, "pieces": 2}, task_id="a/b")
    content = b"\0\0\0\1\1\1"
    ref: dict[str, Any] = outcome.result
    assert (ref["sha256"], ref["url"]) == (hashlib.sha256(content).hexdigest(), "/tasks/a%2Fb/media/video")
    assert outcome.media["video"].content == content
    outcome = await run(media_sync, {"size": 3, "pieces": 2})
    assert {name: each.mime for name, each in outcome.media.items()} == {"video": "video/mp4", "note": "text/plain"}
