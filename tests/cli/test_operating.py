"""migrate, limits, types, stats, purge, psql, services: the operators' side, over SQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from taskgate.cli import places
from taskgate.cli.errors import CliError
from taskgate.local import state
from taskgate.settings import Settings
from tests.cli.conftest import Cli, run
from tests.programs import TASKGATE, Program, environment, start_worker
from tests.waiting import until


def test_help_is_quick_to_import_and_lists_every_command() -> None:
    done = subprocess.run([TASKGATE, "--help"], env=environment(), capture_output=True, text=True, check=True)
    shown = (
        "up api worker migrate fake-provider submit get list watch cancel retry limits types stats purge doctor psql"
    )
    for name in shown.split(" "):
        assert f" {name} " in done.stdout
    assert "autoscale" not in done.stdout
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import taskgate.cli.main"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert "| typer\n" in loaded.replace(" ", "").replace("|", "| ")
    for heavy in ("pydantic", "asyncpg", "psycopg", "httpx2", "openai", "fastapi", "structlog"):
        assert f"| {heavy}\n" not in loaded.replace(" ", "").replace("|", "| "), heavy


def test_import_taskgate_is_light() -> None:
    code = "import sys, taskgate; print(sorted({'httpx2', 'asyncpg', 'psycopg', 'sqlalchemy'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], env=environment(), text=True).strip() == "[]"


def test_migrate_and_its_refusals(empty_database: str) -> None:
    env = environment(DATABASE_URL=empty_database)
    ran = run(env, "limits", "show", "--json")
    assert (ran.code, ran.error["code"]) == (3, "schema_mismatch")
    assert "taskgate migrate" in ran.error["message"]
    assert run(env | {"MAX_CONCURRENT_TASKS": "7"}, "migrate", "--json").json == {"schema_version": 1}
    assert run(env | {"MAX_CONCURRENT_TASKS": "7"}, "migrate").code == 0  # twice is fine
    assert run(env, "limits", "show", "--json").json["limit"] == 7
    assert "limit 7 → 9, from MAX_CONCURRENT_TASKS" in run(env | {"MAX_CONCURRENT_TASKS": "9"}, "migrate").out
    run(env, "limits", "set", "7")
    assert run(env, "migrate", "--json").code == 0
    assert run(env, "limits", "show", "--json").json["limit"] == 7, "not set: not touched"
    with psycopg.connect(empty_database) as connection:
        connection.execute("UPDATE taskgate.schema_version SET version = 999")
    for arguments in (["migrate"], ["stats"], ["limits", "set", "3"]):
        ran = run(env, *arguments, "--json")
        assert (ran.code, ran.error["code"]) == (3, "schema_mismatch")
        assert "upgrade taskgate" in ran.error["message"]


def test_somebody_elses_table_is_refused(empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE TABLE tasks (id int PRIMARY KEY, title text)")
    ran = run(environment(DATABASE_URL=empty_database), "migrate", "--json")
    assert (ran.code, ran.error["code"]) == (1, "migration_failed")
    assert "not a task table" in ran.error["message"]


def test_a_limit_of_something_unknown_is_set_with_a_warning(operate: Cli) -> None:
    for option, name in (("--type", "nope"), ("--upstream", "nope")):
        ran = operate("limits", "set", "3", option, name, "--json")
        assert (ran.code, ran.json["limit"]) == (0, 3)
        assert f"No {option[2:]} {name} is known" in ran.err
    assert "llm, veo" in operate("limits", "set", "3", "--type", "nope").err
    assert operate("limits", "set", "3", "--type", "llm").err == ""
    assert operate("limits", "set", "3", "--each-upstream").err == ""
    assert "No type nope is known" in operate("limits", "rate", "--requests", "60", "--type", "nope").err


def test_a_limit_of_a_tenant_without_a_key_or_task_is_set_with_a_note(operate: Cli, database: str) -> None:
    keys = {"TASKGATE_API_KEYS": "acme:secret-a, ops:secret-b:admin"}
    ran = operate("limits", "set", "2", "--tenant", "gamma", env=keys)
    assert (ran.code, ran.out) == (0, "limit of tenant gamma none -> 2\n")
    assert ran.err == (
        "No task of a tenant gamma is known, and no API key of that name (TASKGATE_API_KEYS has acme, ops); "
        "the limit holds once there is one.\n"
    )
    assert "TASKGATE_API_KEYS is not set here" in operate("limits", "set", "2", "--tenant", "acme").err
    assert operate("limits", "set", "2", "--tenant", "acme", env=keys).err == ""
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO tasks (task_id, status, task_type, request, tenant) "
            "VALUES ('a', 'pending', 'llm', '{}', 'gamma')"
        )
    assert operate("limits", "set", "2", "--tenant", "gamma", env=keys).err == ""


def test_a_limit_of_a_model_says_what_it_leaves_out(operate: Cli) -> None:
    note = "Tasks that name no model do not count here, whichever they run on: limit them by --type or --upstream.\n"
    assert operate("limits", "set", "3", "--model", "whatever").err == note
    assert operate("limits", "set", "3", "--each-model").err == note
    assert operate("limits", "rate", "--requests", "60", "--model", "whatever").err == note


def test_a_worker_has_the_slots_it_is_told(database: str) -> None:
    with start_worker(database, "--slots", "5", TASKGATE_SLOTS="9", OPENAI_API_KEY="none") as program:
        assert program.event("worker_started")["slots"] == 5
    assert run(environment(DATABASE_URL=database), "worker", "--slots", "0").code == 2


def test_the_url_of_the_database(operate: Cli, database: str) -> None:
    assert operate("psql", "--print-url").out == f"{database}\n"


def test_limits(operate: Cli) -> None:
    assert operate("limits", "set", "3", "--json").json == {"limit": 3, "before": 20}
    assert operate("limits", "set", "0").out == "limit 3 -> 0 (paused)\n"
    shown = operate("limits", "show", "--json").json
    assert (shown["limit"], shown["running"]) == (0, 0)
    assert "0 (paused)" in operate("limits", "show").out
    assert operate("limits", "set", "3", "--type", "veo", "--json").json == {
        "limit": 3, "before": None, "scope": "type", "name": "veo"
    }  # fmt: skip
    assert operate("limits", "set", "5", "--each-tenant").out == "limit of each tenant none -> 5\n"
    assert operate("limits", "set", "4", "--type", "veo").out == "limit of type veo 3 -> 4\n"
    groups = operate("limits", "show", "--json").json["groups"]
    assert [(g["scope"], g["name"], g["max_concurrent"]) for g in groups] == [("type", "veo", 4), ("tenant", "*", 5)]
    assert "each tenant" in operate("limits", "show").out
    for arguments in (["--type", "a", "--model", "b"], ["--type", "a", "--each-type"], ["--model", ""]):
        ran = operate("limits", "set", "3", *arguments, "--json")
        assert (ran.code, ran.error["code"]) == (2, "usage")
    assert operate("limits", "rate", "--model", "m", "--requests", "7200", "--burst", "20", "--tokens", "1e6").out == (
        "rate of model m: 7,200 calls, 1,000,000 tokens\n"
    )
    (row,) = [g for g in operate("limits", "show", "--json").json["groups"] if g["scope"] == "model"]
    assert (row["requests_left"], row["tokens_left"], row["max_concurrent"]) == (20, 1e6, None)
    assert "7,200 calls, 1,000,000 tokens" in operate("limits", "show").out
    assert operate("limits", "rate", "--requests", "1", "--json").error["code"] == "usage"
    assert operate("limits", "unset", "--json").error["code"] == "usage"
    assert operate("limits", "unset", "--each-tenant", "--json").json["removed"] is True
    assert operate("limits", "unset", "--each-tenant").out == "each tenant: had none\n"
    assert operate("limits", "show", "--json").json["limit"] == 0
    assert operate("limits", "set", "many").code == 2
    assert "limit    0 (paused)\nrunning  0" in operate("limits").out
    assert operate("limits", "--json").json["limit"] == 0
    ran = operate("limits", "--json", "set", "9")
    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert operate("limits", "--json").json["limit"] == 0


def test_types_and_stats(operate: Cli, worker: Program, database: str) -> None:
    names = {row["name"]: row for row in operate("types", "--json").json}
    assert names["echo"]["workers"] == 1
    assert names["echo"]["description"] == "Answers with its request."
    assert names["llm"]["workers"] == 0
    assert "Answers with its request." in operate("types").out
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO tasks (task_id, status, task_type, request) VALUES ('a', 'pending', 'llm', '{}')"
        )
    stats = operate("stats", "--json").json
    assert (stats["pending"], stats["running"], stats["workers"]) == (1, 0, 1)
    assert stats["by_type"] == [{"task_type": "llm", "status": "pending", "tasks": 1}]
    assert stats["worker_list"][0]["types"] == ["echo"]
    shown = operate("stats").out
    assert "echo" in shown
    assert "alive" in shown


def test_purge(operate: Cli, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO tasks (task_id, status, task_type, request, expires_at) "
            "SELECT n::text, 'completed', 'llm', '{}', now() + n * interval '1 hour' FROM generate_series(-4, 2) n"
        )
    assert operate("purge", "--batch", "2", "--json").json == {"purged": 5}
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (2,)


@pytest.mark.parametrize("path", [os.environ["PATH"], "/nowhere"])  # of the system, else the embedded one
def test_psql_sees_the_tasks(operate: Cli, path: str) -> None:
    ran = operate("psql", "-X", "-Atc", "SELECT count(*), current_schema() FROM tasks", env={"PATH": path})
    assert (ran.code, ran.out) == (0, "0|taskgate\n")


def test_psql_keeps_the_password_off_the_command_line(operate: Cli, tmp_path: Path, database: str) -> None:
    spy = tmp_path / "psql"
    spy.write_text('#!/bin/sh\necho "$@"\necho "password $PGPASSWORD"\n')
    spy.chmod(0o755)
    ran = operate("psql", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    line, password = ran.out.splitlines()
    secret = password.removeprefix("password ")
    assert secret
    assert secret in database
    assert secret not in line


def test_the_database_is_away() -> None:
    env = environment(DATABASE_URL="postgresql://someone:secret@127.0.0.1:9/tasks")
    for arguments in (["stats"], ["migrate"], ["limits", "set", "3"]):
        ran = run(env, *arguments, "--json")
        assert (ran.code, ran.error["code"]) == (4, "not_reachable")
        assert "secret" not in ran.err


def test_a_wrong_setting_is_named() -> None:
    ran = run(environment(DATABASE_URL="mysql://x", TASKGATE_SLOTS="0"), "stats", "--json")
    assert (ran.code, ran.error["code"]) == (2, "settings")
    assert {each["pointer"] for each in ran.error["errors"]} == {"DATABASE_URL", "TASKGATE_SLOTS"}


def test_a_running_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    running = state.State(1, "x", "http://127.0.0.1:8123", "postgresql://u@127.0.0.1/tasks", "/data", "model")
    for name in ("TASKGATE_URL", "DATABASE_URL", "TASKGATE_SCHEMA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(state, "find", lambda: running)
    assert places.api_place()[0] == running.url
    assert places.api_place("http://other")[0] == "http://other"
    assert places.database_place(Settings()).url == running.dsn
    monkeypatch.setenv("TASKGATE_URL", "http://configured")
    monkeypatch.setenv("DATABASE_URL", "postgresql://configured/tasks")
    assert places.api_place()[0] == "http://configured"
    assert places.database_place(Settings()).url == "postgresql://configured/tasks"
    monkeypatch.setattr(state, "find", lambda: None)
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(CliError, match="no `taskgate up`") as caught:
        places.database_place(Settings())
    assert caught.value.exit_code == 2


@pytest.fixture
def found_up(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment that holds no DATABASE_URL but leads to an `up` on the test's database: this process."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    data = state.default_data_dir()
    if tmp_path not in data.parents:
        pytest.skip("root's data folder is the system's here")
    data.mkdir(parents=True)
    started = state.process_started(os.getpid()) or ""
    settings = {"TASKGATE_LLM_MODEL": "model-of-up", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    state.write(
        state.State(os.getpid(), started, "http://127.0.0.1:8", database, str(data), "m", model_settings=settings)
    )
    return environment(XDG_DATA_HOME=str(tmp_path), HOME=str(tmp_path), TASKGATE_LOG_FORMAT="json")


def test_what_runs_finds_the_database_of_a_running_up(found_up: dict[str, str], tmp_path: Path, database: str) -> None:
    (tmp_path / "up_work.py").write_text(
        "import os\nfrom taskgate import Task, handler\n\n\n@handler('tell')\n"
        "def tell(task: Task[dict]) -> str:\n    return os.environ['TASKGATE_LLM_MODEL'] + os.environ['no_proxy']\n"
    )
    said = "DATABASE_URL is not set: using that of the running `taskgate up`, postgresql://127.0.0.1"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tasks (task_id, status, task_type, request) VALUES ('a', 'pending', 'tell', '{}')"
        )
        env = found_up | {"PYTHONPATH": str(tmp_path)}
        with Program([TASKGATE, "worker", "--app", "up_work:tell", "--types", "tell"], env) as program:
            program.event("worker_started")
            until(
                "the task's end",
                lambda: connection.execute("SELECT 1 FROM tasks WHERE status = 'completed'").fetchone(),
            )
            assert program.lines[0].startswith(said)
        (result,) = connection.execute("SELECT result FROM tasks").fetchone() or ("",)
        assert result.startswith("model-of-up")
        assert "127.0.0.1" in result
    with Program([TASKGATE, "api", "--port", "0"], found_up) as program:
        program.event("api_started")
        assert program.lines[0].startswith(said)
    ran = run(found_up, "migrate")
    assert (ran.code, ran.err.startswith(said)) == (0, True)
    assert run(found_up, "migrate", "--json").err == ""
    password = urlsplit(database).password
    assert password
    assert password not in ran.err
    with Program([TASKGATE, "worker"], found_up | {"DATABASE_URL": "postgresql://u@127.0.0.1:9/x"}) as program:
        program.event("database_lost")
        assert not any(line.startswith(said) for line in program.lines)


def test_fake_provider_runs_under_its_own_pid() -> None:
    with Program([TASKGATE, "fake-provider", "--port", "0"], environment()) as program:
        assert program.line("fake provider listening on http://127.0.0.1:")
    assert program.process.returncode in (0, -15)


def test_a_reader_that_goes_away_is_no_error(operate: Cli, database: str) -> None:
    shell = f"'{TASKGATE}' types --json | head -c 1"
    done = subprocess.run(["sh", "-c", shell], env=environment(DATABASE_URL=database), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[", "")
