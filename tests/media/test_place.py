"""TASKGATE_MEDIA_STORE as it is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from taskgate.media.place import Place, parse_place
from taskgate.settings import Settings


def test_places() -> None:
    assert parse_place("postgres") == Place("postgres")
    assert parse_place("file:///var/lib/media/") == Place("file:///var/lib/media", folder="/var/lib/media")
    assert parse_place("file:///with%20space").folder == "/with space"
    assert parse_place("s3://bucket") == Place("s3://bucket", bucket="bucket")
    assert parse_place("s3://bucket/a/b/?endpoint=http://minio:9000&region=eu-1") == Place(
        "s3://bucket/a/b", bucket="bucket", prefix="a/b", endpoint="http://minio:9000", region="eu-1"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "Postgres", "/var/lib/media", "file:", "file:///", "file://host/a", "file:///a/../b", "file:///a?b=c"),
        *("s3:///prefix", "s3://key:secret@bucket", "s3://b?key=x", "s3://b?endpoint=minio:9000", "gs://bucket"),
    ],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"file:///|s3://"):
        parse_place(text)


def test_a_wrong_setting_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKGATE_MEDIA_STORE", "gs://bucket")
    with pytest.raises(ValidationError, match="no media store"):
        Settings()
