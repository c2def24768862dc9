"""Writes docs/reference/settings.md from the settings module: `python scripts/settings_doc.py`."""

from __future__ import annotations

from pathlib import Path

from taskgate.environment import env_names
from taskgate.settings import Settings

PLACE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
HEAD = """# Settings

From the environment, with the same names and defaults for the API and both workers. Any of them can come from a
file instead: `NAME_FILE=/run/secrets/name` (Docker and Kubernetes secrets). Durations are seconds. This page is
written by `python scripts/settings_doc.py`.

`MAX_CONCURRENT_TASKS`, `TASKGATE_MAX_ATTEMPTS`, `TASKGATE_MAX_THROTTLE_SECONDS`, `TASKGATE_RESULT_TTL_SECONDS` and
`TASKGATE_AGEING_SECONDS` live in the database: `taskgate migrate` writes each that is set there when its value changed
since migrate last saw it, and says so. One that is not set is left alone: a limit set live stays. Before the first
value the defaults hold.

| setting | default | what it is |
| --- | --- | --- |
"""


def page() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        names = " or ".join(f"`{each}`" for each in env_names(field, name))
        default = "" if field.default in ("", None) else f"`{field.default}`"
        rows.append(f"| {names} | {default} | {field.description} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PLACE.write_text(page(), encoding="utf-8")
