"""submit, get, list, watch, cancel, retry: the real command, a real API, a real worker."""

from __future__ import annotations

import json

import psycopg
import pytest

from taskgate.cli.tasks import show
from taskgate.views import TaskView
from tests.cli.conftest import Cli, run
from tests.programs import Program, environment, start_api
from tests.waiting import until


def test_submit_prints_the_id_alone(produce: Cli) -> None:
    ran = produce("submit", "What is the capital of France?", "--system", "short", "--model", "m", "--priority", "9")
    assert ran.code == 0
    task_id = ran.out.strip()
    assert ran.out == f"{task_id}\n"
    shown = produce("get", task_id, "--json", "--request").json
    assert shown["status"] == "pending"
    assert shown["priority"] == 9
    assert shown["request"] == {"prompt": "What is the capital of France?", "system": "short", "model": "m"}


def test_a_request_from_stdin_keeps_its_order(produce: Cli) -> None:
    body = '{"prompt": "p", "response_format": {"zz": 1, "b": {"y": 1, "x": 2}}}'
    task_id = produce("submit", "--request", "-", stdin=body).out.strip()
    shown = produce("get", task_id, "--request", "--json").json
    assert json.dumps(shown["request"]) == body


def test_wait_prints_the_result(produce: Cli, worker: Program) -> None:
    ran = produce("submit", "hello", "--type", "echo", "--wait", "--within", "60")
    assert (ran.code, ran.out) == (0, "echo hello\n")
    assert len(ran.err.splitlines()) == 1  # the id alone
    as_json = produce("submit", "again", "--type", "echo", "--wait", "--json").json
    assert as_json["result"] == {"text": "echo again"}
    assert as_json["attempts"] == 1


def test_a_failed_task_is_exit_code_1(produce: Cli, worker: Program) -> None:
    ran = produce("submit", "break", "--type", "echo", "--wait")
    assert ran.code == 1
    assert "as asked (asked_for)" in ran.out
    task_id = ran.err.strip()
    assert produce("get", task_id).code == 1
    history = produce("get", task_id, "--history", "--json").json["history"]
    assert [(each["outcome"], each["error_code"]) for each in history] == [("failed", "asked_for")]
    shown = produce("get", task_id, "--history").out
    assert "history" in shown
    assert "failed" in shown


def test_not_final_in_time(produce: Cli) -> None:
    ran = produce("submit", "nobody works", "--within", "0.2", "--json")
    assert ran.code == 1
    assert ran.error["code"] == "wait_timeout"
    assert ran.error["task_id"] in ran.error["remedy"]


def test_waiting_for_nobody_is_said_once(produce: Cli, worker: Program) -> None:
    ran = produce("submit", "nobody works", "--within", "0.2")
    task_id, warning, *_ = ran.err.splitlines()
    assert warning == "No live worker serves the type llm: the task waits for one (taskgate worker --app MODULE)."
    assert ran.err.count("No live worker") == 1
    assert task_id in ran.err.splitlines()[-1]


def test_a_key_that_may_not_see_workers_is_no_trouble(database: str) -> None:
    with start_api(database, TASKGATE_API_KEYS="acme:secret-a") as program:
        env = environment(TASKGATE_URL=program.event("api_started")["url"], TASKGATE_API_KEY="secret-a")
        ran = run(env, "submit", "nobody works", "--within", "0.2")
    assert (ran.code, "No live worker" in ran.err) == (1, False)
    assert "It goes on" in ran.err


def test_many_and_watch(produce: Cli, worker: Program) -> None:
    lines = "".join(f'{{"prompt": "{name}"}}\n' for name in ("a", "b", "break"))
    ran = produce("submit", "--many", "-", "--type", "echo", stdin=lines + "\n")
    assert ran.code == 0
    task_ids = ran.out.split()
    assert len(task_ids) == 3
    watched = produce("watch", *task_ids, "--json")
    assert watched.code == 1
    final = {each["task_id"]: each["status"] for each in map(json.loads, watched.out.splitlines())}
    assert final == dict(zip(task_ids, ["completed", "completed", "failed"], strict=True))
    said = produce("watch", task_ids[0], "unknown").out.splitlines()  # whichever answers first
    assert sorted(said) == sorted([f"{task_ids[0]} completed", "unknown not_found"])


def test_many_is_all_or_nothing_and_names_the_line(produce: Cli) -> None:
    ran = produce("submit", "--many", "-", "--json", stdin='{"prompt": "a"}\n{"prompt": 5}\n')
    assert ran.code == 2
    assert ran.error["errors"][0]["pointer"] == "/1/prompt"
    assert produce("list", "--json").json["items"] == []
    ran = produce("submit", "--many", "-", stdin='{"prompt": "a"}\n{"prompt"\n')
    assert ran.code == 2
    assert "line 2" in ran.err
    assert produce("list", "--json").json["items"] == []


def test_watch_the_queue_until_it_is_empty(produce: Cli, worker: Program) -> None:
    for prompt in ("a", "b"):
        produce("submit", prompt, "--type", "echo")
    ran = produce("watch", "--until-empty", "--json", "--interval", "0.05")
    assert ran.code == 0
    last = json.loads(ran.out.splitlines()[-1])
    assert (last["running"], last["pending"], last["limit"]) == (0, 0, 20)
    assert "running 0 of 20, pending 0" in produce("watch", "--until-empty").out


def test_list_filters_and_pages(produce: Cli) -> None:
    made = [produce("submit", f"p{n}").out.strip() for n in range(3)]
    produce("submit", "film", "--type", "veo")
    first = produce("list", "--json", "--limit", "2", "--type", "llm").json
    assert [item["task_id"] for item in first["items"]] == [made[2], made[1]]
    rest = produce("list", "--json", "--cursor", first["next_cursor"], "--type", "llm").json
    assert ([item["task_id"] for item in rest["items"]], rest["next_cursor"]) == ([made[0]], None)
    everything = produce("list", "--all", "--json", "--status", "pending").out.splitlines()
    assert len(everything) == 4
    assert produce("list", "--json", "--status", "failed").json["items"] == []
    assert produce("list", "--json", "--before", "2001-01-01T00:00:00").json["items"] == []
    table = produce("list", "--all", "--limit", "1").out
    assert all(task_id in table for task_id in made)  # no column is cut in a pipe


def test_cancel_and_retry(produce: Cli) -> None:
    task_id = produce("submit", "x").out.strip()
    assert produce("retry", task_id).code == 1  # it has not failed
    ran = produce("cancel", task_id, "unknown", "--json")
    assert ran.code == 1
    assert ran.json[0] == {"task_id": task_id, "outcome": "cancelled", "detail": None}
    assert ran.json[1]["outcome"] == "task_not_found"
    assert produce("get", task_id, "--json").json["error"] == "cancelled"
    assert produce("retry", task_id).out.split() == [task_id, "pending"]
    assert produce("get", task_id, "--json").json["status"] == "pending"


def test_a_running_task_is_told_to_stop(produce: Cli, worker: Program) -> None:
    task_id = produce("submit", "hang", "--type", "echo").out.strip()
    until("running", lambda: produce("get", task_id, "--json").json["status"] == "running")
    assert produce("cancel", task_id).out.split() == [task_id, "cancelling"]
    ran = produce("get", task_id, "--wait", "--within", "60", "--json")
    assert (ran.code, ran.json["status"], ran.json["error"]) == (1, "failed", "cancelled")


def test_what_is_shown_of_an_ambiguous_submission(capsys: pytest.CaptureFixture[str]) -> None:
    attempts = [
        {"attempt": 1, "outcome": "failed", "error": "submit_ambiguous"},
        {"attempt": 1, "outcome": "completed"},
    ]
    show(TaskView("t", "failed", error="submit_ambiguous", error_code="submit_ambiguous", history=tuple(attempts)))
    lines = capsys.readouterr().out.splitlines()
    assert "error     submit_ambiguous" in lines
    assert any(line.startswith("meaning   A paid call was cut off") and "taskgate retry" in line for line in lines)
    numbers = [line.split()[:3] for line in lines if line.split()[:1] in (["1"], ["2"])]
    assert numbers == [["1", "1", "failed"], ["2", "1", "completed"]], "counted on after a retry by hand"


def test_an_id_of_the_callers_own(produce: Cli) -> None:
    assert produce("submit", "x", "--task-id", "order-7").out.strip() == "order-7"
    ran = produce("submit", "x", "--task-id", "order-7", "--json")
    assert (ran.code, ran.error["code"]) == (1, "task_exists")
    assert "--idempotency-key" in ran.error["remedy"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit"], "give a prompt"),
        (["submit", "a", "--many", "-"], "give a prompt"),
        (["submit", "a", "--metadata", "[1]"], "metadata must be an object"),
        (["submit", "a", "--metadata", "{"], "no valid JSON"),
        (["submit", "--request", "/nonexistent/file"], "cannot read"),
        (["submit", "a", "--task-id", "not an id"], "task_id must be"),
        (["submit", "a", "--type", "Bad Type"], "no task type"),
        (["submit", "--request", "-"], "no valid JSON"),
        (["list", "--after", "yesterday"], "is no time"),
        (["list", "--limit", "501"], "500"),
        (["list", "--status", "cancelled"], "a cancelled task is `failed`, with the error code cancelled"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_exit_code_2(operate: Cli, arguments: list[str], words: str) -> None:
    ran = operate(*arguments)
    assert ran.code == 2
    assert words in ran.err
    ran = operate(*arguments, "--json")
    assert ran.code == 2
    assert words in ran.error["message"]


def test_the_api_refuses_and_says_where(produce: Cli) -> None:
    ran = produce("submit", "--request", "-", "--json", stdin='{"prompt": 5}')
    assert ran.code == 2
    assert ran.error["errors"][0]["pointer"] == "/prompt"
    ran = produce("submit", "x", "--type", "nosuch")
    assert ran.code == 1
    assert "llm, veo" in ran.err
    assert produce("get", "unknown").code == 1


def test_a_prompt_for_a_type_that_wants_more_names_the_way(produce: Cli, database: str) -> None:
    with psycopg.connect(database) as connection:
        schema = '{"properties": {"text": {"type": "string"}}, "required": ["text"]}'
        connection.execute("INSERT INTO taskgate.task_types (name, request_schema) VALUES ('summarize', %s)", [schema])
    ran = produce("submit", "-t", "summarize", "hello")
    assert (ran.code, ran.out) == (2, "")
    assert "--request FILE" in ran.err
    assert produce("submit", "-t", "summarize", "--request", "-", stdin='{"text": "hello"}').code == 0
    as_json = produce("submit", "-t", "summarize", "hello", "--json").error
    assert (as_json["code"], "--request FILE" in as_json["remedy"]) == ("invalid_request", True)


def test_nothing_a_task_holds_steers_the_terminal(produce: Cli, worker: Program) -> None:
    ran = produce("submit", "\x1b[31mred\x07", "--type", "echo", "--wait")
    assert ran.code == 0
    assert ran.out == "echo �[31mred�\n"


def test_the_api_is_away(operate: Cli) -> None:
    for arguments in (["get", "x"], ["submit", "x"], ["watch"]):
        ran = operate(*arguments, "--json", env={"TASKGATE_URL": "http://127.0.0.1:9"})
        assert (ran.code, ran.error["code"]) == (4, "not_reachable")
        assert "taskgate up" in ran.error["remedy"]
