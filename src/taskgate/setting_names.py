"""Names in the environment that are slips of the pen: TASKGATE_SLOT, where TASKGATE_SLOTS is meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from taskgate.environment import env_names
from taskgate.settings import Settings

PREFIX = "TASKGATE_"
NOT_SETTINGS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "IMAGE",
        "WORKER_IMAGE",
        "WORKERS",
        "PYTHON_SLOTS",
        "PYTHON",
        "PUBLISHED_PORT",
        "API_CPUS",
        "STOP_SECONDS",
    )
)
"""What compose.yaml and the launchers read."""
LIKENESS = 0.8
"""Of what follows the prefix; SLOT and SLOTS come to 0.89, STOP_SECONDS and POLL_SECONDS to 0.75."""


def slips(names: Iterable[str]) -> list[tuple[str, str]]:
    """Of these names of environment variables those that are no setting but look much like one, and that one."""
    every = [name for field_name, field in Settings.model_fields.items() for name in env_names(field, field_name)]
    ours = [name.removeprefix(PREFIX) for name in every if name.startswith(PREFIX)]
    known = [*ours, *(f"{name}_FILE" for name in ours)]
    found = []
    for name in sorted(names):
        word = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or word in known:
            continue
        for meant in get_close_matches(word, known, 1, LIKENESS):
            found.append((name, PREFIX + meant))
    return found


def slip_words(name: str, meant: str) -> str:
    """For people."""
    return f"unknown setting {name}; did you mean {meant}?"


def log_slips(log: Any, names: Iterable[str]) -> None:
    """Says each once, as the event `setting_unknown`."""
    for name, meant in slips(names):
        log.warning("setting_unknown", setting=name, error=slip_words(name, meant))
