"""Slips of the pen in setting names are told, and nothing else is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskgate.environment import env_names
from taskgate.setting_names import NOT_SETTINGS, slips
from taskgate.settings import Settings
from tests.api.api_process import ApiProcess
from tests.programs import TASKGATE, environment, start_worker

ROOT = Path(__file__).parent.parent
WORDS = "unknown setting TASKGATE_SLOT; did you mean TASKGATE_SLOTS?"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TASKGATE_SLOT", "TASKGATE_SLOTS"),
        ("TASKGATE_SLOST", "TASKGATE_SLOTS"),
        ("TASKGATE_LEASE_SECOND", "TASKGATE_LEASE_SECONDS"),
        ("TASKGATE_ALLOW_ANONYMUS", "TASKGATE_ALLOW_ANONYMOUS"),
        ("TASKGATE_API_KEYSS_FILE", "TASKGATE_API_KEYS_FILE"),
    ],
)
def test_a_slip_names_what_is_meant(name: str, meant: str) -> None:
    assert slips(["PATH", name]) == [(name, meant)]


def test_nothing_is_said_of_right_or_foreign_names() -> None:
    names = [name for field_name, field in Settings.model_fields.items() for name in env_names(field, field_name)]
    kubernetes = [
        "TASKGATE_PORT_8000_TCP",
        "TASKGATE_SERVICE_HOST",
        "TASKGATE_SERVICE_PORT",
        "TASKGATE_PORT_8000_TCP_ADDR",
    ]
    assert slips([*names, *(f"{name}_FILE" for name in names), *kubernetes, "TASKGATE_MINE", "TASKGATE_", "SLOT"]) == []
    compose = set(re.findall(r"TASKGATE_[A-Z_]+", (ROOT / "compose.yaml").read_text(encoding="utf-8")))
    assert slips(compose) == []
    assert compose - set(names) <= NOT_SETTINGS


def test_each_program_says_it_once(database: str) -> None:
    with ApiProcess(database, TASKGATE_SLOT="3") as api:
        assert [(each["level"], each["setting"], each["error"]) for each in api.events("setting_unknown")] == [
            ("warning", "TASKGATE_SLOT", WORDS)
        ]
    with start_worker(database, "--types", "llm", TASKGATE_SLOT="3", OPENAI_API_KEY="k") as worker:
        assert worker.event("setting_unknown")["error"] == WORDS
    ran = subprocess.run(
        [TASKGATE, "limits", "show"],
        env=environment(DATABASE_URL=database, TASKGATE_SLOT="3"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == f"{WORDS}\n"


def test_a_worker_by_its_module_says_it_too(database: str) -> None:
    env = environment(DATABASE_URL=database, TASKGATE_SLOT="3", TASKGATE_LOG_FORMAT="console")
    ran = subprocess.run(
        [sys.executable, "-m", "taskgate.worker", "--app", "no_such_module"], env=env, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert WORDS in ran.stderr
