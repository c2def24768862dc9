"""doctor: each trouble is made for real in a database, and is found with a remedy."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Cli, run
from tests.programs import Program, environment
from tests.waiting import until


def checks(ran: Any) -> dict[str, dict[str, Any]]:
    """Checks by name; of several with one name the worst."""
    ranked = sorted(ran.json["checks"], key=lambda check: ["ok", "warn", "fail"].index(check["state"]))
    return {check["name"]: check for check in ranked}


def execute(database: str, statement: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(statement)


TASK = "INSERT INTO tasks (task_id, status, task_type, request) VALUES ('a', 'pending', '{}', '{{}}')"
OLD_WORKER = (
    "INSERT INTO taskgate.workers (worker_id, language, version, host, pid, slots, types, seen_at) "
    "VALUES ('old', 'python', '0', 'far', 1, 20, '{llm}', now() - interval '10 minutes')"
)


def test_all_is_well(operate: Cli, worker: Program, api: str) -> None:
    ran = operate("doctor", "--json", env={"TASKGATE_URL": api})
    assert ran.code == 0
    assert ran.json["healthy"] is True
    assert {name: check["state"] for name, check in checks(ran).items()} == dict.fromkeys(
        [
            "database",
            "schema",
            "limit",
            "workers",
            "queue",
            "leases",
            "claim lock",
            "snapshots",
            "clock",
            "settings",
            "api",
        ],
        "ok",
    )
    shown = operate("doctor").out
    assert "ok    schema" in shown
    assert "->" not in shown


def test_no_worker(operate: Cli, database: str) -> None:
    ran = operate("doctor", "--json")
    assert (ran.code, checks(ran)["workers"]["state"]) == (0, "warn")
    execute(database, TASK.format("llm"))
    ran = operate("doctor", "--json")
    assert (ran.code, checks(ran)["workers"]["state"]) == (1, "fail")
    assert "-> Start one: taskgate worker" in operate("doctor").out


def test_paused_silent_and_unserved(operate: Cli, database: str, worker: Program) -> None:
    execute(database, TASK.format("nobody"))
    execute(database, OLD_WORKER)
    execute(database, "SELECT taskgate.set_limit(0)")
    ran = operate("doctor", "--json")
    found = checks(ran)
    assert ran.code == 1
    assert (found["limit"]["state"], found["silent worker"]["state"]) == ("warn", "warn")
    assert "paused" in found["limit"]["message"]
    assert found["task types"]["state"] == "fail"
    assert "nobody" in found["task types"]["message"]
    assert found["task types"]["remedy"].endswith("taskgate worker --app MODULE --types nobody")
    execute(database, "UPDATE tasks SET task_type = 'llm'")
    remedy = checks(operate("doctor", "--json"))["task types"]["remedy"]
    assert "OPENAI_API_KEY" in remedy, "without a provider a worker would fail what waits"
    assert "--app" not in remedy
    execute(database, "SELECT taskgate.set_limit(1000)")
    assert "can never be reached" in checks(operate("doctor", "--json"))["workers"]["message"]


def test_a_task_that_waits_though_there_is_room(operate: Cli, database: str, worker: Program) -> None:
    execute(database, TASK.format("nobody"))
    execute(database, "UPDATE tasks SET created_at = now() - interval '1 hour'")
    found = checks(operate("doctor", "--json"))
    assert (found["task types"]["state"], found["queue"]["state"]) == ("fail", "ok")
    worker.process.send_signal(signal.SIGSTOP)  # alive by its last sign of life, but takes nothing
    try:
        execute(database, "UPDATE tasks SET task_type = 'echo'")
        found = checks(operate("doctor", "--json"))
        assert "task types" not in found
        assert found["queue"]["state"] == "warn"
        assert "one of type echo has waited 1 h" in found["queue"]["message"]
        assert "have room (20 free slots)" in found["queue"]["message"]
        execute(database, OLD_WORKER.replace("'old'", "'other'").replace("interval '10 minutes'", "interval '1 s'"))
        execute(database, "UPDATE taskgate.workers SET busy = slots WHERE types = '{echo}'")
        found = checks(operate("doctor", "--json"))  # the other worker's slots are no room for it
        assert (found["workers"]["state"], found["queue"]["state"]) == ("ok", "ok")
        execute(database, TASK.format("llm").replace("'a'", "'b'"))
        execute(database, "UPDATE tasks SET run_at = now() + interval '1 hour' WHERE task_id = 'b'")
        assert checks(operate("doctor", "--json"))["queue"]["state"] == "ok", "nor is it room for a delayed one"
        execute(database, "UPDATE taskgate.workers SET busy = slots - 1, draining = true WHERE types = '{echo}'")
        assert checks(operate("doctor", "--json"))["queue"]["state"] == "ok", "one that drains takes nothing"
    finally:
        worker.process.send_signal(signal.SIGCONT)


def test_overdue_tasks_that_nobody_recovers(operate: Cli, database: str) -> None:
    execute(
        database,
        "INSERT INTO tasks (task_id, status, task_type, request, locked_until) "
        "VALUES ('a', 'running', 'llm', '{}', now() - interval '5 minutes')",
    )
    ran = operate("doctor", "--json")
    assert (ran.code, checks(ran)["leases"]["state"]) == (1, "fail")


def test_who_holds_the_claim_lock(operate: Cli, database: str) -> None:
    with psycopg.connect(database, application_name="stubborn") as holder:
        holder.execute("SELECT pg_advisory_xact_lock(taskgate.lock_key())")
        check = checks(operate("doctor", "--json"))["claim lock"]
        assert "stubborn" in check["message"]
        assert f"process {holder.info.backend_pid} " in check["message"]
        until("a long hold", lambda: checks(operate("doctor", "--json"))["claim lock"]["state"] == "fail")
    assert checks(operate("doctor", "--json"))["claim lock"]["message"] == "free"


def test_schema_and_reachability(empty_database: str) -> None:
    ran = run(environment(DATABASE_URL=empty_database), "doctor", "--json")
    assert ran.code == 1
    assert checks(ran)["schema"]["remedy"] == "Run `taskgate migrate`."
    ran = run(environment(DATABASE_URL="postgresql://u:secret@127.0.0.1:9/x"), "doctor", "--json")
    assert ran.code == 1
    assert checks(ran)["database"]["state"] == "fail"
    assert "secret" not in ran.out


@pytest.mark.parametrize(
    ("variables", "state", "words"),
    [
        ({"TASKGATE_LEASE_SECONDS": "2"}, "warn", "renewed every 0.7 s"),
        ({"TASKGATE_LEASE_SECONDS": "3600"}, "warn", "longer than an attempt"),
        ({"TASKGATE_POLL_SECONDS": "90"}, "warn", "notification was lost"),
        ({"TASKGATE_GRACE_SECONDS": "3600"}, "warn", "orchestrators kill"),
        ({"TASKGATE_MAX_BODY_BYTES": "300000000"}, "fail", "more than jsonb can hold"),
        ({"TASKGATE_HOST": "0.0.0.0"}, "fail", "without keys"),
        ({"MAX_CONCURRENT_TASKS": "99"}, "warn", "MAX_CONCURRENT_TASKS=99 here"),
    ],
)
def test_settings_that_contradict_each_other(operate: Cli, variables: dict[str, str], state: str, words: str) -> None:
    ran = operate("doctor", "--json", env=variables)
    check = checks(ran)["settings"]
    assert check["state"] == state
    assert words in check["message"]
    assert check["remedy"]
    assert ran.code == (1 if state == "fail" else 0)


def test_the_api_is_away(operate: Cli) -> None:
    ran = operate("doctor", "--json", env={"TASKGATE_URL": "http://127.0.0.1:9"})
    assert (ran.code, checks(ran)["api"]["state"]) == (1, "fail")


@pytest.mark.parametrize("url", ["127.0.0.1:18432", "localhost:18432"])
def test_a_url_without_its_scheme(operate: Cli, url: str) -> None:
    ran = operate("doctor", "--json", env={"TASKGATE_URL": url})
    check = checks(ran)["api"]
    assert (ran.code, check["state"]) == (1, "fail")
    assert check["message"].startswith(f"'{url}' is no URL of an API")
    assert check["remedy"] == f"Set TASKGATE_URL (or --url) to http://{url}."


def test_an_api_on_another_database(
    operate: Cli, api: str, database: str, make_database: Callable[[str | None], str], migrated_template: str
) -> None:
    assert checks(operate("doctor", "--json", env={"TASKGATE_URL": api}))["api"]["state"] == "ok"
    by_another_name = database.replace("127.0.0.1", "localhost")
    assert by_another_name != database
    same = operate("doctor", "--json", env={"TASKGATE_URL": api, "DATABASE_URL": by_another_name})
    assert checks(same)["api"]["state"] == "ok"
    other = make_database(migrated_template)
    ran = operate("doctor", "--json", env={"TASKGATE_URL": api, "DATABASE_URL": other})
    check = checks(ran)["api"]
    assert (ran.code, check["state"]) == (1, "fail")
    assert check["message"].startswith(f"{api} works on another database than the one that was checked, postgresql://")
    assert other.rpartition("/")[2] in check["message"]
    assert check["remedy"].startswith("Set DATABASE_URL to that API's database")
