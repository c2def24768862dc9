"""One line an event, in either format, and libraries go the same way."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging
from taskgate.logs import configure, get_logger
configure({format!r})
log = get_logger("part")
log.info("task_claimed", task_id="t", waited_seconds=0.5, odd={{1, 2}}.__class__)
log.debug("not_shown")
logging.getLogger("some.library").warning("it said %s", "so")
logging.getLogger("some.library").info("not shown")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("request_failed")
log.warning("task_failed", traceback="Traceback:\\n  line 1")
"""


def lines(log_format: str) -> list[str]:
    program = PROGRAM.format(format=log_format)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == ""
    return run.stderr.splitlines()


def test_json() -> None:
    for log_format in ("json", "auto"):  # not a terminal
        claimed, library, failed, task = (json.loads(line) for line in lines(log_format))
        assert claimed["event"] == "task_claimed"
        assert (claimed["level"], claimed["component"], claimed["waited_seconds"]) == ("info", "part", 0.5)
        assert claimed["timestamp"].endswith("Z")
        assert (library["event"], library["level"], library["message"]) == ("library", "warning", "it said so")
        assert library["component"] == "some.library"
        assert "ZeroDivisionError" in failed["exception"]
        assert task["traceback"] == "Traceback:\n  line 1"


def test_console() -> None:
    shown = lines("console")
    assert "task_claimed" in shown[0]
    assert "task_id=t" in shown[0]
    assert "\x1b" not in shown[0]
    assert any("ZeroDivisionError" in line for line in shown)
    assert shown[-2:] == ["Traceback:", "  line 1"]
