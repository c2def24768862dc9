"""Values as JSON text that the database takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.task import PermanentError
from taskgate.worker.results import MAX_INFO_BYTES, error_text, info_text, result_text, to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


@given(JSON | st.text(alphabet="\0\\u0a\ud83d\ude00é"))
def test_text_is_storable_and_means_the_same(value: Any) -> None:
    text, size = to_json(value)
    assert size == len(text.encode())
    assert json.loads(text) == _cleaned(value)
    assert "\\u0000" not in text.replace("\\\\", "")


@pytest.mark.parametrize("value", [object(), float("nan"), {(1, 2): 3}, b"\xff", lambda: 1])
def test_what_is_not_json(value: Any) -> None:
    with pytest.raises(PermanentError) as raised:
        result_text(value, 1000)
    assert raised.value.code == "result_not_json"


def test_size_is_counted_in_bytes() -> None:
    assert result_text("é" * 10, 22) == json.dumps("é" * 10, ensure_ascii=False)
    with pytest.raises(PermanentError) as raised:
        result_text("é" * 10, 21)
    assert (raised.value.code, raised.value.info) == ("result_too_large", {"bytes": 22, "max_bytes": 21})


def test_dates_become_text() -> None:
    assert json.loads(result_text({"at": datetime(2030, 1, 2, tzinfo=UTC)}, 1000)) == {"at": "2030-01-02T00:00:00Z"}


def test_information_never_fails() -> None:
    assert info_text(None) is None
    assert json.loads(info_text({"a": object()}) or "")["text"].startswith("{'a': <object")
    cut = json.loads(info_text({"a": "x" * (MAX_INFO_BYTES + 1)}) or "")
    assert cut["truncated"] is True
    assert error_text("a\0\ud800" + "x" * 3000).startswith("a\ufffd\ufffdx")
    assert len(error_text("x" * 3000)) == 2000
