"""Media in a bucket, against an S3-shaped server on a socket (moto)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from taskgate.media.backend import new_key, open_backend
from taskgate.media.collect import collect_media
from taskgate.media.errors import StoreFailed
from taskgate.media.place import parse_place
from taskgate.protocol.connect import Database, connect
from taskgate.protocol.media import MediaCalls
from tests.api.api_process import ApiProcess
from tests.api.test_media import keep

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def where(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client = boto(endpoint)
    client.create_bucket(Bucket="media")
    for each in client.list_objects_v2(Bucket="media").get("Contents", []):
        client.delete_object(Bucket="media", Key=each["Key"])
    return f"s3://media/task/gate?endpoint={endpoint}&region=us-east-1"


def boto(endpoint: str) -> Any:
    import boto3  # type: ignore[import-untyped]

    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )


def keys(endpoint: str) -> list[str]:
    return [each["Key"] for each in boto(endpoint).list_objects_v2(Bucket="media").get("Contents", [])]


@pytest.mark.parametrize("size", [0, 10, 30_000_000])
async def test_in_and_out(where: str, endpoint: str, size: int) -> None:
    backend = open_backend(parse_place(where))
    assert backend is not None
    content, key = os.urandom(size), new_key()
    writer = await backend.open(key)
    for at in range(0, size, 700_001):
        await writer.write(content[at : at + 700_001])
    await writer.close()
    assert keys(endpoint) == [f"task/gate/{key}"]
    assert b"".join([piece async for piece in backend.read(key, 0, size)]) == content
    if size:
        assert b"".join([piece async for piece in backend.read(key, 3, 9)]) == content[3:9]
    await backend.delete(key)
    await backend.delete(key)
    assert keys(endpoint) == []


async def test_an_upload_given_up_leaves_nothing(where: str, endpoint: str) -> None:
    backend = open_backend(parse_place(where))
    assert backend is not None
    writer = await backend.open(new_key())
    for _ in range(30):
        await writer.write(bytes(1_000_000))
    await writer.abort()
    assert keys(endpoint) == []
    assert boto(endpoint).list_multipart_uploads(Bucket="media").get("Uploads", []) == []


async def test_a_bucket_that_is_not_there(endpoint: str, where: str) -> None:
    backend = open_backend(parse_place(where.replace("s3://media", "s3://nothing")))
    assert backend is not None
    writer = await backend.open(new_key())

    async def upload() -> None:
        for _ in range(100):
            await writer.write(bytes(1_000_000))
        await writer.close()

    with pytest.raises(StoreFailed, match="s3://nothing/task/gate"):
        await upload()
    await writer.abort()
    with pytest.raises(StoreFailed):
        _ = [piece async for piece in backend.read("ab/c", 0, 1)]


async def test_through_the_api_and_collected(database: str, where: str, endpoint: str) -> None:
    connection = await connect(Database(database), "test")
    content = os.urandom(9_000_000)
    ref = await keep(connection, content, where=where)
    again = await keep(connection, content, where=where, task_id="b")
    assert len(keys(endpoint)) == 1, "the same content is there once"
    with ApiProcess(database, TASKGATE_MEDIA_STORE=where) as api:
        async with api.client() as client:
            for url in (ref["url"], again["url"]):
                got = await client.get(url)
                assert hashlib.sha256(got.content).hexdigest() == ref["sha256"]
            got = await client.get(ref["url"], headers={"range": "bytes=1048570-1048580"})
            assert (got.status_code, got.content) == (206, content[1_048_570:1_048_581])
    place = parse_place(where)
    calls, backend = MediaCalls(connection), open_backend(place)
    await connection.execute("DELETE FROM tasks WHERE task_id = 'a'")
    assert await collect_media(calls, place.name, backend, grace=0) == 0
    await connection.execute("DELETE FROM tasks")
    assert await collect_media(calls, place.name, backend, grace=0) == 1
    assert keys(endpoint) == []
    assert await connection.fetchval("SELECT count(*) FROM media_blobs") == 0
    await connection.close()
