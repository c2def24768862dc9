"""The wires of video APIs, each in its turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskgate.local.fake_provider import FakeProvider
from tests.handlers.video.asking import WIRES, of_wire


@pytest.fixture(params=list(WIRES))
def wire(request: pytest.FixtureRequest, provider: FakeProvider, tmp_path: Path) -> dict[str, Any]:
    """Settings for one wire; Vertex with a service account."""
    return of_wire(request.param, provider, tmp_path)
