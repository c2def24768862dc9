"""`python …/broken [--flaw NAME]`: a worker for `llm` prompts. Without a flaw it keeps the rules of the basic level."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import uuid
from typing import Any

import asyncpg
import httpx2

from taskgate.protocol.calls import Calls, ClaimedTask, Failure, WorkerInfo, server_settings

FLAWS = {
    "no-token": "writes its result under whatever token the row has",
    "no-renewal": "never renews a lease",
    "past-the-limit": "claims with SQL of its own, without lock and count",
    "loses-on-drain": "leaves its calls behind on SIGTERM",
}
OWN_CLAIM = """
UPDATE tasks t SET status = 'running', attempts = attempts + 1, claim_token = nextval('claim_token_seq'),
    worker_id = $1, started_at = clock_timestamp(), locked_until = clock_timestamp() + $3 * interval '1 second'
WHERE task_id IN (SELECT task_id FROM tasks WHERE status = 'pending' AND task_type = 'llm' ORDER BY seq
                  LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING task_id, claim_token, task_type, request::text, attempts
"""
POLL_SECONDS = 0.2


class Worker:
    """One process, one connection, as many calls as it has slots."""

    def __init__(self, connection: asyncpg.Connection[Any], flaw: str | None) -> None:
        self._db, self._calls, self._flaw = connection, Calls(connection), flaw
        self._turn = asyncio.Lock()  # one connection, one statement at a time
        self._id = f"broken:{uuid.uuid4().hex}"
        self._slots = int(os.environ["TASKGATE_SLOTS"])
        self._lease = float(os.environ["TASKGATE_LEASE_SECONDS"])
        self._running: dict[asyncio.Task[None], tuple[str, int]] = {}
        self._http = httpx2.AsyncClient(timeout=600, trust_env=False)
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        info = WorkerInfo(self._id, "python", "0", "conformance", os.getpid(), self._slots, {"llm": (None, "")})
        await self._calls.register_worker(info)
        renewing = asyncio.create_task(self._renew())
        while not self.stopping.is_set():
            for task in await self._claim() if len(self._running) < self._slots else []:
                running = asyncio.create_task(self._attempt(task))
                self._running[running] = (task.task_id, task.token)
                running.add_done_callback(self._running.pop)
            await asyncio.wait([asyncio.create_task(self.stopping.wait())], timeout=POLL_SECONDS)
        if self._flaw != "loses-on-drain":
            await asyncio.gather(*self._running)
        renewing.cancel()
        async with self._turn:
            await self._calls.forget_worker(self._id)

    async def _claim(self) -> list[ClaimedTask]:
        free = self._slots - len(self._running)
        async with self._turn:
            if self._flaw == "past-the-limit":
                rows = await self._db.fetch(OWN_CLAIM, self._id, free, self._lease)
                return [_claimed(row) for row in rows]
            held = [token for _, token in self._running.values()]
            return (await self._calls.claim(self._id, free, held, self._lease, ["llm"])).tasks

    async def _renew(self) -> None:
        while self._flaw != "no-renewal":
            await asyncio.sleep(self._lease / 3)
            async with self._turn:
                await self._calls.renew(self._id, list(self._running.values()), self._lease)
                await self._calls.recover()

    async def _attempt(self, task: ClaimedTask) -> None:
        content = json.loads(task.request)["prompt"]
        body = {"model": os.environ["TASKGATE_LLM_MODEL"], "messages": [{"role": "user", "content": content}]}
        response = await self._http.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body)
        async with self._turn:
            if response.status_code != 200:
                retry = response.status_code >= 500
                words = response.json()["error"]["message"]
                code = "provider_error" if retry else "provider_refused"
                await self._calls.fail([Failure(task.task_id, task.token, words, code, retry=retry)])
                return
            token = task.token
            if self._flaw == "no-token":
                token = await self._db.fetchval("SELECT claim_token FROM tasks WHERE task_id = $1", task.task_id)
            text = response.json()["choices"][0]["message"]["content"]
            await self._calls.complete([(task.task_id, token, json.dumps({"text": text}))])


def _claimed(row: asyncpg.Record) -> ClaimedTask:
    task_id, token, task_type, request, attempt = row
    return ClaimedTask(task_id, token, task_type, request, attempt, 3, None, "", None, None, None, 0.0, False)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flaw", choices=FLAWS, help="; ".join(f"{name}: {words}" for name, words in FLAWS.items()))
    given = parser.parse_args()
    connection = await asyncpg.connect(os.environ["DATABASE_URL"], server_settings=server_settings("public", "broken"))
    worker = Worker(connection, given.flaw)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, worker.stopping.set)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)
