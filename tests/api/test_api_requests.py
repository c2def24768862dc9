"""Order and spelling end to end, registered types, many at once, compat."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote

import asyncpg

from taskgate.protocol.calls import Calls, WorkerInfo
from tests.api.api_process import ApiProcess

BODY = {"prompt": "x"}
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "words": {"$ref": "#/$defs/Words"}},
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"Words": {"type": "integer", "minimum": 1}},
}


def worker(**types: tuple[str | None, str]) -> WorkerInfo:
    return WorkerInfo("w", "python", "0", "host", 1, 1, types)


async def test_key_order_and_spelling_reach_the_worker(api: ApiProcess, calls: Calls) -> None:
    sent = (
        '{"prompt":"x","response_format":{"properties":{"reasoning":{},"answer":{}}},"seed":123456789012345678901,'
        '"temperature":1.0,"top_p":1e-1,"taskgate":{"priority":9}}'
    )
    async with api.client() as client:
        answer = await client.post("/tasks", content=sent)
        shown = await client.get(f"/tasks/{answer.json()['task_id']}?include=request")
    (task,) = (await calls.claim("w", 1, [], 60, None)).tasks
    wanted = sent.replace(',"taskgate":{"priority":9}', "")
    assert task.request == wanted
    assert wanted in shown.text


async def test_registered_types_are_checked_and_documented(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        assert (await client.post("/tasks/summarize", json={"text": "x"})).status_code == 404
        await calls.register_worker(worker(summarize=(json.dumps(SCHEMA), "Makes it short."), free=(None, "")))
        accepted = await client.post("/tasks/summarize", json={"text": "x", "words": 3, "taskgate": {"priority": 1}})
        assert accepted.status_code == 202
        assert (await client.post("/tasks/free", json={"anything": [None]})).status_code == 202
        wrong = await client.post("/tasks/summarize", json=[{"text": "x"}, {"words": 0, "more/~": 1}])
        assert wrong.status_code == 422
        places = {error["pointer"] for error in wrong.json()["errors"]}
        assert places == {"/1", "/1/words"}
        document = (await client.get("/openapi.json")).json()
        operation = document["paths"]["/tasks/summarize"]["post"]
        assert "Makes it short." in operation["description"]
        assert '"words"' in json.dumps(operation["requestBody"])
        assert "/tasks/free" in document["paths"]
        names = [each["name"] for each in (await client.get("/types")).json()["items"]]
        assert names == ["free", "llm", "summarize", "veo"]
    rows = await calls.page(with_bodies=True)
    assert {row["task_type"]: json.loads(row["request"]) for row in rows} == {
        "free": {"anything": [None]},
        "summarize": {"text": "x", "words": 3},
    }


async def test_an_unknown_field_of_a_registered_type_is_guessed(api: ApiProcess, calls: Calls) -> None:
    nested = {
        "properties": {"text": {"type": "string"}, "style": {"$ref": "#/$defs/Style"}},
        "required": ["text"],
        "$defs": {"Style": {"properties": {"length": {}}, "additionalProperties": False}},
    }
    await calls.register_worker(worker(summarize=(json.dumps(SCHEMA), ""), nested=(json.dumps(nested), "")))

    async def refused(place: str, body: dict[str, Any]) -> dict[str, str]:
        answer = await client.post(place, json=body)
        assert answer.status_code == 422, answer.text
        return {error["detail"].partition(";")[2]: error["pointer"] for error in answer.json()["errors"]}

    async with api.client() as client:
        assert await refused("/tasks/summarize", {"txt": "x"}) == {" did you mean text by txt?": ""}
        assert await refused("/tasks/summarize", {"text": "x", "word": 1}) == {" did you mean words by word?": ""}
        assert await refused("/tasks/summarize", {"text": "x", "zzz": 1}) == {"": ""}
        assert await refused("/tasks/nested", {"txt": "x"}) == {" did you mean text by txt?": ""}, "allows others"
        wrong = {"text": "x", "style": {"lenght": 1}}
        assert await refused("/tasks/nested", wrong) == {" did you mean length by lenght?": "/style"}
        # a field of that name is the type's own
        assert (await client.post("/tasks/nested", json={"text": "x", "task_type": "y"})).status_code == 202


async def test_a_schema_that_cannot_be_used_lets_requests_pass(api: ApiProcess, calls: Calls) -> None:
    remote = {"$ref": "http://127.0.0.1:9/schema.json"}
    await calls.register_worker(worker(remote=(json.dumps(remote), ""), broken=('{"type":"nonsense"}', "")))
    async with api.client() as client:
        for name in ("remote", "broken"):
            assert (await client.post(f"/tasks/{name}", json={})).status_code == 202
    assert {event["task_type"] for event in api.events("type_schema_unusable")} == {"remote", "broken"}


async def test_a_schema_that_changes_is_noticed(database: str, calls: Calls) -> None:
    await calls.register_worker(worker(t=('{"required":["a"]}', "")))
    with ApiProcess(database) as api:
        async with api.client() as client:
            assert (await client.post("/tasks/t", json={"b": 1})).status_code == 422
            await calls.register_worker(worker(t=('{"required":["b"]}', "")))
            await client.get("/types")  # reads them anew
            assert (await client.post("/tasks/t", json={"b": 1})).status_code == 202


async def test_a_hundred_thousand_tasks_in_one_body(api: ApiProcess, calls: Calls) -> None:
    line = json.dumps({"prompt": "p" * 60, "model": "m" * 10})
    body = "\n".join([line] * 100_000)
    async with api.client() as client:
        # neighbours are served meanwhile
        sending = asyncio.create_task(
            client.post("/tasks", content=body, headers={"content-type": "application/x-ndjson"})
        )
        served = 0
        while not sending.done():
            assert (await client.get("/healthz")).status_code == 200
            served += 1
        answer = await sending
    assert answer.status_code == 202
    assert served > 1
    ids = [each["task_id"] for each in answer.json()]
    assert len(set(ids)) == 100_000
    assert (await calls.stats())["pending"] == 100_000
    assert ids == sorted(ids)
    assert api.peak_mib < 160


async def test_many_are_all_or_nothing(api: ApiProcess, connection: asyncpg.Connection[Any], calls: Calls) -> None:
    good = [{"prompt": f"{number}"} for number in range(2500)]
    async with api.client() as client:
        for bad in ({"prompt": 1}, {"prompt": "x", "taskgate": {"task_id": "taken"}}, {"prompt": "x", "n_": "1e5"}):
            if bad.get("taskgate"):
                await client.post("/tasks", json=bad)
            if "n_" in bad:
                # one that only PostgreSQL refuses: a trigger stands for any rule of the user's
                await connection.execute("ALTER TABLE tasks ADD CONSTRAINT no_n CHECK (NOT request ? 'n_')")
            before = await connection.fetchval("SELECT count(*) FROM tasks")
            answer = await client.post("/tasks", json=[*good, bad])
            assert answer.status_code in (409, 422), answer.text
            assert await connection.fetchval("SELECT count(*) FROM tasks") == before
        assert (await client.post("/tasks", json={"prompt": "x", "n_": 1})).json()["code"] == "refused_by_database"
        answer = await client.post("/tasks", json=good)
        assert answer.status_code == 202
    rows = (await calls.get([each["task_id"] for each in answer.json()], with_request=True)).values()
    assert len(rows) == 2500
    in_order = sorted(rows, key=lambda row: row["task_id"])
    assert [json.loads(row["request"])["prompt"] for row in in_order] == [str(number) for number in range(2500)]


async def test_chunked_bodies_are_limited_too(database: str) -> None:
    with ApiProcess(database, TASKGATE_MAX_BODY_BYTES="2000") as api:
        async with api.client() as client:

            async def chunks(size: int) -> Any:
                yield b'{"prompt":"'
                for _ in range(size // 100):
                    yield b"x" * 100
                yield b'"}'

            assert (await client.post("/tasks", content=chunks(1900))).status_code == 202
            for size in (2000, 100_000):
                answer = await client.post("/tasks", content=chunks(size))
                assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_answers_of_the_origin(database: str) -> None:
    with ApiProcess(database, TASKGATE_COMPAT="origin") as api:
        async with api.client() as client:
            answer = await client.post("/tasks", json=BODY)
            assert (answer.status_code, answer.json()["status"]) == (200, "pending")
            assert (await client.post("/tasks", json=[BODY])).status_code == 200
            unknown = await client.get("/tasks/nope")
            assert (unknown.status_code, unknown.json()["status"]) == (200, "not_found")


async def test_large_results_are_read_one_by_one(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        answers = await asyncio.gather(*(client.post("/tasks", json=BODY) for _ in range(6)))
        ids = [answer.json()["task_id"] for answer in answers]
        tasks = (await calls.claim("w", 6, [], 60, None)).tasks
        import random

        # what does not compress: random hexadecimal digits
        result = json.dumps({"text": random.Random(1).randbytes(300_000).hex()})
        await calls.complete([(task.task_id, task.token, result) for task in tasks])
        answers = await asyncio.gather(*(client.get(f"/tasks/{task_id}") for task_id in ids * 3))
        assert all(answer.json()["result"] == json.loads(result) for answer in answers)


async def test_any_id_can_be_asked_for(api: ApiProcess, connection: asyncpg.Connection[Any]) -> None:
    """Ids that SQL brought may hold anything."""
    async with api.client() as client:
        for task_id in ("a/b", "a/b?c=d#e", "/", "x/cancel", "100%", "a%2Fb", "ä b"):
            await connection.execute(
                "INSERT INTO tasks (task_id, status, task_type, request) VALUES ($1, 'pending', 'llm', '{}')", task_id
            )
            place = f"/tasks/{quote(task_id, safe='')}"
            got = await client.get(place)
            assert (got.status_code, got.json()["task_id"], got.json()["status"]) == (200, task_id, "pending")
            cancelled = await client.post(f"{place}/cancel")
            assert (cancelled.status_code, cancelled.json()["task_id"]) == (200, task_id)
            assert (await client.post(f"{place}/retry")).json() == {
                "task_id": task_id,
                "status": "pending",
                "outcome": "retried",
            }
        metrics = (await client.get("/metrics")).text
    assert re.search(r'requests_total\{method="POST",route="/tasks/\{task_id\}/cancel",status="200"\} 7', metrics)


async def test_a_path_that_only_begins_like_one_is_another(api: ApiProcess) -> None:
    async with api.client() as client:
        assert (await client.post("/tasksx", json=BODY)).status_code == 404
        assert (await client.post("/tasksx/llm", json=BODY)).status_code == 404


async def test_every_json_answer_ends_its_line(api: ApiProcess) -> None:
    async with api.client() as client:
        answers = [
            await client.post("/tasks", json=BODY),
            await client.post("/tasks", json=[BODY, BODY]),
            await client.post("/tasks?wait=0.01", json=BODY),
            await client.post("/tasks", content="{"),
            await client.post("/tasks/x/cancel"),
            await client.put("/tasks"),
        ]
        answers.append(await client.get(f"/tasks/{answers[0].json()['task_id']}?include=request,history"))
        for path in (
            "/tasks",
            "/tasks/nope",
            "/tasks?limit=0",
            "/nope",
            "/limits",
            "/stats",
            "/healthz",
            "/openapi.json",
        ):
            answers.append(await client.get(path))
    for answer in answers:
        assert "json" in answer.headers["content-type"]
        assert answer.content.endswith(b"}\n") or answer.content.endswith(b"]\n"), answer.text
        assert answer.content.count(b"\n") == 1


async def test_the_documentation_needs_no_internet(api: ApiProcess) -> None:
    async with api.client() as client:
        page = await client.get("/docs")
        assert "//" not in re.sub(r"\s//.*", "", page.text)  # no address elsewhere
        linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        files = {name: await client.get(f"/{name}") for name in linked if not name.startswith("data:")}
        assert sorted(files) == ["docs/swagger-ui-bundle.js", "docs/swagger-ui.css"]
        for answer in files.values():
            assert answer.status_code == 200
        assert "javascript" in files["docs/swagger-ui-bundle.js"].headers["content-type"]
        assert "SwaggerUIBundle" in files["docs/swagger-ui-bundle.js"].text
        assert ".swagger-ui" in files["docs/swagger-ui.css"].text
        assert (await client.get("/docs/redoc.standalone.js")).status_code == 404
        refused = await client.get("/docs/swagger-ui.css", headers={"Host": "evil.example"})
        assert refused.status_code == 403


async def test_memory_at_rest(api: ApiProcess) -> None:
    async with api.client() as client:
        for body in (BODY, {"messages": [{"role": "user", "content": "x"}]}, [BODY, BODY]):
            assert (await client.post("/tasks", json=body)).status_code == 202
        for path in ("/tasks", "/stats", "/types", "/workers", "/metrics", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
    assert api.resident_mib < 80


async def test_another_method_is_told_what_works(api: ApiProcess) -> None:
    async with api.client() as client:
        for path in ("/tasks/x", "/tasks"):
            answer = await client.delete(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
            assert answer.json()["code"] == "method_not_allowed"
            assert "POST /tasks/{task_id}/cancel" in answer.json()["detail"]
        assert "cancel" not in (await client.put("/tasks/x")).json()["detail"]
