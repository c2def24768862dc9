"""The settings: names, files, keys, and the page that lists them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pydantic import ValidationError

from taskgate.settings import Settings

ROOT = Path(__file__).parent.parent


def test_a_secret_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-from-file\n")
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert Settings().openai_api_key == "sk-from-file"


def test_a_missing_secret_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY_FILE", "/nowhere/key")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY_FILE: cannot read /nowhere/key"):
        Settings()


def test_keys_name_their_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKGATE_API_KEYS", "acme:S1, ops:S2:admin")
    keys = Settings().api_keys
    assert [(key.name, key.secret, key.admin) for key in keys] == [("acme", "S1", False), ("ops", "S2", True)]


@pytest.mark.parametrize("text", ["acme", "acme:", ":S", "acme:S:boss", "a:S, b:S"])
def test_malformed_keys_are_refused_without_being_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKGATE_API_KEYS", text)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "TASKGATE_API_KEYS" in str(caught.value)
    assert "input_value" not in str(caught.value)


def test_a_negative_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_TASKS", "-1")
    with pytest.raises(ValidationError, match="MAX_CONCURRENT_TASKS"):
        Settings()


def test_the_settings_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "settings_doc.py"))["page"]()
    assert (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8") == page
