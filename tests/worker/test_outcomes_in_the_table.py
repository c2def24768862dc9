"""What handlers return and raise, as it ends in the table; the worker lives through all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import Table, WorkerProcess

ALL = "noop,sleep,nap,block,swallow,typed,quick,checkpoint,checkpoint-sync,do"


async def test_every_outcome(table: Table, start_worker: Callable[..., WorkerProcess], tmp_path: Path) -> None:
    worker = start_worker(ALL, TASKGATE_SLOTS="30", TASKGATE_MAX_RESULT_BYTES=str(1024**2))
    wanted: list[tuple[str, dict[str, Any], int]] = [
        ("raise", {}, 1),
        ("exit", {}, 1),
        ("interrupt", {}, 1),
        ("cancel itself", {}, 1),
        ("stop iteration", {}, 1),
        ("permanent", {}, 3),
        ("retry", {}, 3),
        ("snooze", {"file": str(tmp_path / "snoozed")}, 1),
        ("strange retry", {}, 1),
        ("object", {}, 3),
        ("nan", {}, 3),
        ("circle", {}, 3),
        ("deep", {}, 3),
        ("large", {"bytes": 50 * 1024**2}, 3),
        ("strange text", {}, 1),
        ("values", {}, 1),
    ]
    what = {
        name: (await table.add("do", [{"what": name, **more}], max_attempts=attempts))[0]
        for name, more, attempts in wanted
    }
    typed, wrong = await table.add("typed", [{"name": "ann"}, {"size": "many"}])
    (quick,) = await table.add("quick", [{}], max_attempts=1)
    (own_time,) = await table.add("sleep", [{"seconds": 3600}], max_attempts=1, timeout_seconds=0.2)
    (saved,) = await table.add("checkpoint", [{}])
    (saved_sync,) = await table.add("checkpoint-sync", [{}])
    (nap,) = await table.add("nap", [{"seconds": 0.01}])
    (nap_stopped,) = await table.add("nap", [{"seconds": 60, "looks": True}], max_attempts=1, timeout_seconds=0.2)
    rows = await table.final([*what.values(), typed, wrong, quick, own_time, saved, saved_sync, nap, nap_stopped])
    ended = {name: rows[task_id] for name, task_id in what.items()}
    (throttled,) = await table.add("do", [{"what": "throttled"}])  # the last one: then its type cools down
    ended["throttled"] = (await table.final([throttled]))[throttled]

    raised = ended["raise"]
    assert (raised["status"], raised["error_code"]) == ("failed", "handler_error")
    assert raised["error"].startswith("ValueError: wrong � � xxx")
    assert len(raised["error"]) == 2000
    assert "ValueError" in json.loads(raised["error_info"])["traceback"]
    assert ended["exit"]["error"] == "SystemExit: 7"
    assert ended["interrupt"]["error"] == "KeyboardInterrupt"
    assert ended["cancel itself"]["error"] == "CancelledError"
    assert ended["stop iteration"]["error_code"] == "handler_error"
    assert (ended["permanent"]["error"], ended["permanent"]["error_code"]) == ("never", "no_such_thing")
    assert json.loads(ended["permanent"]["error_info"]) == {"provider": "says no"}
    assert ended["permanent"]["attempts"] == 1
    assert json.loads(ended["retry"]["result"]) == "third"
    assert await table.history(what["retry"]) == [
        ("retried", "handler_error"),
        ("retried", "handler_error"),
        ("completed", None),
    ]
    assert json.loads(ended["snooze"]["result"]) == 1, "a snooze costs no attempt"
    assert (ended["throttled"]["status"], ended["throttled"]["error_code"]) == ("failed", "throttled")
    assert (ended["strange retry"]["error"], ended["strange retry"]["error_code"]) == ("7", "a\ufffdb")
    for name in ("object", "nan", "circle", "deep"):
        assert (ended[name]["status"], ended[name]["error_code"]) == ("failed", "result_not_json"), name
        assert ended[name]["attempts"] == 1
    assert ended["large"]["error_code"] == "result_too_large"
    assert json.loads(ended["large"]["error_info"])["bytes"] == 50 * 1024**2 + 2
    assert json.loads(ended["strange text"]["result"]) == {
        "nul\ufffd": "a\ufffdb",
        "lone": "\ufffd",
        "escaped": "\\u0000",
        "pair": "\U0001f600",
    }
    assert json.loads(ended["values"]["result"]) == {
        "model": {"name": "m", "size": 1},
        "point": {"x": 1, "y": 2.5},
        "set": [1],
        "none": None,
        "big": 2**70,
    }

    assert json.loads(rows[typed]["result"]) == {"name": "ANN", "size": 2}
    assert (rows[wrong]["status"], rows[wrong]["error_code"]) == ("failed", "invalid_request")
    assert rows[wrong]["attempts"] == 1
    assert (rows[quick]["error_code"], rows[quick]["error"]) == ("timeout", "the attempt took longer than 0.3 s")
    assert rows[own_time]["error_code"] == "timeout"
    assert json.loads(rows[saved]["result"]) == {"from": {"page": 7, "nul": "a\ufffdb"}, "attempt": 2}
    assert json.loads(rows[saved_sync]["result"]) == [1, 2]
    assert json.loads(rows[nap]["result"]) == "napped, attempt 1"
    assert rows[nap_stopped]["error_code"] == "timeout"

    failures = {each["task_id"]: each for each in worker.events("task_failed")}
    trace = failures[what["raise"]]["traceback"]
    assert trace == json.loads(raised["error_info"])["traceback"]
    assert "in do" in trace
    assert "raise ValueError" in trace
    assert "traceback" not in failures[what["permanent"]]
    assert "traceback" not in failures[quick]

    (after,) = await table.add("noop", [{}])
    assert (await table.final([after]))[after]["status"] == "completed", "the worker lives"
    assert worker.process.poll() is None
    types = {row["name"]: row for row in await table.calls.types()}
    assert json.loads(types["typed"]["request_schema"])["required"] == ["name"]
    assert types["nap"]["description"].startswith("A plain function")


async def test_types_without_a_handler_are_left_alone(table: Table, start_worker: Callable[..., WorkerProcess]) -> None:
    (foreign,) = await table.add("sleep", [{"seconds": 0}])
    start_worker("noop")
    ours = await table.add("noop", [{}] * 30)
    await table.final(ours)
    assert (await table.row(foreign))["status"] == "pending"
