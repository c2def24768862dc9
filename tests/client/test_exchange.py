"""The client's rules, driven with answers one by one: what is repeated, what is not, what an answer means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from taskgate import flows
from taskgate.errors import (
    Conflict,
    FieldProblem,
    IdempotencyMismatch,
    NotAllowed,
    NotFound,
    NotReachable,
    RequestRefused,
    ServerError,
    ServiceUnavailable,
    SubmissionUncertain,
    TaskExists,
    TaskgateError,
    WaitTimeout,
)
from taskgate.exchange import TRIES, Answer, Call, Flow, Pause, Reply, Trouble, retry_after
from taskgate.submission import Body, Chunk

T = TypeVar("T")

REFUSED = Trouble("refused", sent=False)
RESET = Trouble("reset", sent=True)
ACCEPTED = Reply(202, {}, b'{"task_id":"t","status":"pending"}')


def reply(status: int, body: Any = None, **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, names, b"" if body is None else json.dumps(body).encode())


def problem(status: int, code: str, **more: Any) -> Reply:
    return reply(status, {"code": code, "detail": f"it is {code}", **more})


EXISTS = problem(409, "task_exists")


def drive(flow: Flow[T], answers: Sequence[Answer]) -> tuple[T, list[Call], list[float]]:
    """Runs a flow on scripted answers; every one of them must be used."""
    calls: list[Call] = []
    pauses: list[float] = []
    left = list(answers)
    step = next(flow)
    try:
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                step = flow.send(None)
            else:
                calls.append(step)
                step = flow.send(left.pop(0))
    except StopIteration as end:
        assert not left
        return end.value, calls, pauses


def failing(flow: Flow[Any], answers: Sequence[Answer], kind: type[TaskgateError]) -> TaskgateError:
    with pytest.raises(kind) as caught:
        drive(flow, answers)
    assert type(caught.value) is kind
    return caught.value


def submission(task_id: str | None = None) -> Flow[Any]:
    return flows.submit(Body('{"prompt":"p","taskgate":{}}', task_id, has_key=False), "llm")


def test_what_was_never_sent_is_sent_again() -> None:
    submitted, calls, pauses = drive(submission(), [REFUSED, REFUSED, ACCEPTED])
    assert submitted.task_id == "t"
    assert len(calls) == 3
    assert len(pauses) == 2
    failing(submission(), [REFUSED] * TRIES, NotReachable)


@pytest.mark.parametrize(
    "answer", [RESET, reply(502), reply(504), problem(503, "database_unavailable", task_id="made")]
)
def test_a_doubtful_submission_is_not_repeated_without_an_id(answer: Answer) -> None:
    error = failing(submission(), [answer], SubmissionUncertain)
    expected = "made" if isinstance(answer, Reply) and answer.status == 503 else None
    assert error.task_id == expected


def test_what_the_api_did_not_take_is_repeated() -> None:
    _, calls, pauses = drive(submission(), [problem(503, "overloaded"), reply(429, {}, retry_after="2"), ACCEPTED])
    assert len(calls) == 3
    assert pauses[1] >= 2


def test_with_an_id_a_doubtful_submission_is_repeated_and_its_own_task_found() -> None:
    ours = reply(200, {"task_id": "t", "status": "running", "request": {"prompt": "p"}})
    submitted, calls, _ = drive(submission("t"), [RESET, EXISTS, ours])
    assert submitted.task_id == "t"
    assert calls[2].params == {"include": "request"}


def test_with_an_id_doubt_remains_when_the_api_stays_away() -> None:
    error = failing(submission("t"), [RESET, *[REFUSED] * (TRIES - 1)], SubmissionUncertain)
    assert error.task_id == "t"
    failing(submission("t"), [REFUSED] * TRIES, NotReachable)  # never sent: no doubt


def test_with_an_id_somebody_elses_task_is_not_taken_for_ours() -> None:
    other = reply(200, {"task_id": "t", "status": "running", "request": {"prompt": "another"}})
    failing(submission("t"), [RESET, EXISTS, other], TaskExists)
    failing(submission("t"), [RESET, EXISTS, reply(404, {"task_id": "t", "status": "not_found"})], TaskExists)
    failing(submission("t"), [EXISTS], TaskExists)  # the first try: nobody's but another's
    failing(submission("t"), [REFUSED, EXISTS], TaskExists)  # never sent, so not ours either


def test_with_an_idempotency_key_a_doubtful_submission_is_repeated() -> None:
    body = Body('{"prompt":"p","taskgate":{"idempotency_key":"k"}}', None, has_key=True)
    submitted, calls, _ = drive(flows.submit(body, "llm"), [RESET, reply(504), ACCEPTED])
    assert submitted.task_id == "t"
    assert len(calls) == 3
    chunk = Chunk(0, [body.text], [None], keyed=True)
    _, calls, _ = drive(flows.submit_chunk(chunk, "llm"), [RESET, reply(202, [{"task_id": "t", "status": "pending"}])])
    assert len(calls) == 2
    failing(flows.submit(body, "llm"), [problem(422, "idempotency_mismatch")], IdempotencyMismatch)


def test_retry_after_is_obeyed_within_bounds() -> None:
    read = flows.read("/stats")
    _, _, pauses = drive(read, [reply(503, {}, retry_after="3"), reply(200, {})])
    assert pauses == [3.0]
    error = failing(flows.read("/stats"), [reply(503, {}, retry_after="3600")], ServiceUnavailable)
    assert error.retry_after == 3600
    failing(flows.read("/stats"), [problem(503, "schema_mismatch")], ServiceUnavailable)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("7", 7, 7), ("Wed, 01 Jan 2020 00:00:00 GMT", 0, 0), ("Fri, 01 Jan 2100 00:00:00 GMT", 1e9, 1e10)],
)
def test_retry_after_forms(text: str, low: float, high: float) -> None:
    seconds = retry_after({"retry-after": text})
    assert seconds is not None
    assert low <= seconds <= high
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefused),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (413, RequestRefused),
        (422, RequestRefused),
        (500, ServerError),
    ],
)
def test_statuses_are_errors_of_the_tree(status: int, kind: type[TaskgateError]) -> None:
    body = problem(status, "some_code", errors=[{"pointer": "/prompt", "detail": "is missing"}])
    error = failing(submission(), [body], kind)
    assert (error.code, error.status) == ("some_code", status)
    assert error.errors == (FieldProblem("/prompt", "is missing"),)
    assert "it is some_code" in str(error)
    assert "/prompt: is missing" in str(error)


def test_an_answer_of_something_else_is_said_so() -> None:
    error = failing(flows.read("/stats"), [Reply(200, {}, b"<html>")], ServerError)
    assert "is this a taskgate API" in error.detail
    failing(submission(), [reply(202, ["nothing"])], ServerError)


@pytest.mark.parametrize("status", [404, 200])  # 200: the origin's way
def test_an_unknown_task(status: int) -> None:
    body = {"task_id": "t", "status": "not_found", "result": None, "error": None}
    failing(flows.get("t", 0, ()), [reply(status, body)], NotFound)


def test_waiting_asks_until_final_and_gives_up_in_time() -> None:
    running, done = {"task_id": "t", "status": "running"}, {"task_id": "t", "status": "completed"}
    view, calls, pauses = drive(flows.wait_final("t", None, ()), [reply(200, running), RESET, reply(200, done)])
    assert view.ok
    assert [call.params["wait"] for call in calls] == ["30", "30", "30"]
    assert pauses[0] > 0  # an API that does not hold its answer is not hammered
    with pytest.raises(WaitTimeout) as caught:
        drive(flows.wait_final("t", 0, ()), [reply(200, running)])
    assert caught.value.task.status == "running"


def test_pointers_of_a_later_chunk_count_from_the_first_body_of_all() -> None:
    chunk = Chunk(1000, ["{}", "{}"], [None, None])
    body = problem(422, "invalid", errors=[{"pointer": "/1/prompt", "detail": "no"}, {"pointer": "", "detail": "x"}])
    error = failing(flows.submit_chunk(chunk, "llm"), [body], RequestRefused)
    assert [each.pointer for each in error.errors] == ["/1001/prompt", ""]


def test_a_chunk_is_repeated_only_when_every_body_has_an_id() -> None:
    mixed = Chunk(0, ["{}", "{}"], ["a", None])
    failing(flows.submit_chunk(mixed, "llm"), [RESET], SubmissionUncertain)
    named = Chunk(0, ['{"x":1}', '{"x":2}'], ["a", "b"])
    ours = [reply(200, {"task_id": i, "status": "pending", "request": {"x": x}}) for i, x in (("a", 1), ("b", 2))]
    submitted, _, _ = drive(flows.submit_chunk(named, "llm"), [RESET, EXISTS, *ours])
    assert [each.task_id for each in submitted] == ["a", "b"]


def test_a_retry_that_was_carried_out_before_its_answer_was_lost() -> None:
    pending = reply(200, {"task_id": "t", "status": "pending"})
    submitted, _, _ = drive(flows.retry("t"), [RESET, problem(409, "not_failed"), pending])
    assert submitted.task_id == "t"
    failing(flows.retry("t"), [problem(409, "not_failed")], Conflict)


def test_paths_cannot_be_escaped() -> None:
    _, calls, _ = drive(flows.get("a/../b?x=1", 0, ()), [reply(200, {"task_id": "t", "status": "pending"})])
    assert calls[0].path == "/tasks/a%2F..%2Fb%3Fx%3D1"
    with pytest.raises(ValueError, match="task id"):
        drive(flows.get("..", 0, ()), [])
    with pytest.raises(ValueError, match="no task type"):
        drive(flows.submit(Body("{}", None, has_key=False), "../x"), [])
