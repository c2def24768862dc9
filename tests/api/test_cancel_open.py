"""Cancel and GET tell the truth of a task whose operation at the provider is still open."""

from __future__ import annotations

from taskgate.protocol.calls import Calls, Release
from tests.api.api_process import ApiProcess


async def test_a_cancel_that_the_next_worker_hears_of(api: ApiProcess, calls: Calls) -> None:
    async with api.client() as client:
        task_id = (await client.post("/tasks/veo", json={"prompt": "A cat"})).json()["task_id"]
        (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
        await calls.intend(task_id, task.token, "{}", retry=False)
        await calls.save_operation(task_id, task.token, '{"name": "op"}')
        await calls.release([Release(task_id, task.token, code="released", reason="shutdown")])
        answer = await client.post(f"/tasks/{task_id}/cancel")
        assert answer.status_code == 202
        assert answer.json() == {"task_id": task_id, "status": "pending", "outcome": "cancelling"}
        waiting = (await client.get(f"/tasks/{task_id}")).json()
        assert (waiting["status"], waiting["error"], waiting["cancel_requested"]) == ("pending", None, True)
        assert (await client.post(f"/tasks/{task_id}/retry")).status_code == 409
        (task,) = (await calls.claim("w", 1, [], 60, ["veo"])).tasks
        await calls.complete([(task_id, task.token, "{}")])
        ended = (await client.get(f"/tasks/{task_id}")).json()
        assert (ended["status"], ended["error"], ended["result"]) == ("failed", "cancelled", None)
