"""The calls of a worker, from registration to settlement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from taskgate.protocol.records import (
    INLINE_BYTES,
    ClaimAnswer,
    ClaimedTask,
    Failure,
    Release,
    Verdicts,
    WorkerInfo,
)
from taskgate.protocol.session import Session, integers, interval, seconds, verdicts


class WorkerCalls(Session):
    """The calls of a worker, from registration to settlement."""

    async def register_worker(self, worker: WorkerInfo) -> None:
        await self._db.execute(
            f"SELECT {self._f}.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            worker.worker_id,
            worker.language,
            worker.version,
            worker.host,
            worker.pid,
            worker.slots,
            list(worker.types),
            [schema for schema, _ in worker.types.values()],
            [description for _, description in worker.types.values()],
        )

    async def forget_worker(self, worker_id: str) -> None:
        await self._db.execute(f"SELECT {self._f}.forget_worker($1)", worker_id)

    async def claim(
        self,
        worker_id: str,
        slots: int,
        held: Sequence[int],
        lease: float,
        types: Sequence[str] | None,
        *,
        listener: int | None = None,
        ahead: int | None = None,
    ) -> ClaimAnswer:
        """Claim up to `slots` tasks for `lease` seconds. `held` are the tokens this process holds already.

        `listener` is what `listen_alone` answered on the connection that listens for this process, 0 while there is
        none; None for one that listens on the channel of all.

        `ahead` is for how many more to claim, which wait in this process for a slot; None: it cannot hold more.

        A token counts as held until the answer to its complete, fail or release is there. Large bodies come in
        a second round trip; when that fails, the next claim has the same tasks again.
        """
        rows = await self._db.fetch(
            f"SELECT * FROM {self._f}.claim($1, $2, $3::text::bigint[], $4, $5, $6, p_listener => $7, p_ahead => $8)",
            worker_id,
            slots,
            integers(held),
            timedelta(seconds=lease),
            None if types is None else list(types),
            INLINE_BYTES,
            listener,
            ahead,
        )
        return await self._claim_answer(rows)

    async def listen_alone(self, types: Sequence[str] | None) -> int:
        """Listen on a channel of this connection's own, for a worker that serves `types`; its number, for `claim`."""
        number: int = await self._db.fetchval(f"SELECT {self._f}.listen_alone($1)", types and list(types))
        return number

    def own_channel(self, number: int) -> str:
        """Where `listen_alone` listens."""
        return f"{self._f}_ready_{number}"

    async def be_busy(self) -> None:
        """The process that claims by this connection shall not be woken any more."""
        await self._db.execute(f"SELECT {self._f}.be_idle(NULL)")

    async def renew(
        self, worker_id: str, held: Sequence[tuple[str, int]], lease: float, *, draining: bool = False
    ) -> Verdicts:
        """Renew leases from now on; with nothing held it is the worker's sign of life."""
        return verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.renew($1, $2, $3, $4, $5)",
                worker_id,
                [task_id for task_id, _ in held],
                [token for _, token in held],
                timedelta(seconds=lease),
                draining,
            )
        )

    async def complete(self, results: Sequence[tuple[str, int, str]]) -> Verdicts:
        """Write results: (task_id, token, JSON text)."""
        return verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.complete($1, $2::text::bigint[], $3)",
                [task_id for task_id, _, _ in results],
                integers(token for _, token, _ in results),
                [result for _, _, result in results],
            )
        )

    async def complete_and_claim(
        self,
        results: Sequence[tuple[str, int, str]],
        worker_id: str,
        slots: int,
        held: Sequence[int],
        lease: float,
        types: Sequence[str] | None,
        *,
        ahead: int | None = None,
    ) -> tuple[Verdicts, ClaimAnswer]:
        """Write results, and claim into the slots that this frees, in one round trip and one commit.

        `held` has the tokens of `results` too. The claim is `busy` while another one is under way: results do not wait.
        """
        rows = await self._db.fetch(
            f"SELECT * FROM {self._f}.complete_and_claim"
            "($1, $2::text::bigint[], $3, $4, $5, $6::text::bigint[], $7, $8, $9, $10)",
            [task_id for task_id, _, _ in results],
            integers(token for _, token, _ in results),
            [result for _, _, result in results],
            worker_id,
            slots,
            integers(held),
            timedelta(seconds=lease),
            None if types is None else list(types),
            INLINE_BYTES,
            ahead,
        )
        answers = {(task_id, token): "done" for task_id, token, _ in results}
        claimed = []
        for row in rows:
            if row["task_id"] is None or row["outcome"] in ("claimed", "again"):
                claimed.append(row)
            else:
                answers[row["task_id"], row["token"]] = row["outcome"]
        return answers, await self._claim_answer(claimed) if claimed else ClaimAnswer("busy", [], None)

    async def _claim_answer(self, rows: Sequence[Any]) -> ClaimAnswer:
        if rows[0]["task_id"] is None:
            return ClaimAnswer(rows[0]["outcome"], [], seconds(rows[0]["next_due"]))
        bodies: dict[str, Any] = {row["task_id"]: row for row in rows}
        large = [row for row in rows if row["request"] is None]
        if large:
            fetched = await self._db.fetch(
                f"SELECT * FROM {self._f}.claimed_bodies($1, $2)",
                [row["task_id"] for row in large],
                [row["token"] for row in large],
            )
            bodies |= {row["task_id"]: row for row in fetched}
        return ClaimAnswer(
            "claimed",
            [
                ClaimedTask(
                    task_id=row["task_id"],
                    token=row["token"],
                    task_type=row["task_type"],
                    request=bodies[row["task_id"]]["request"],
                    attempt=row["attempt"],
                    max_attempts=row["max_attempts"],
                    timeout_seconds=row["timeout_seconds"],
                    tenant=row["tenant"],
                    metadata=bodies[row["task_id"]]["metadata"],
                    checkpoint=bodies[row["task_id"]]["checkpoint"],
                    traceparent=row["traceparent"],
                    waited_seconds=seconds(row["waited"]) or 0.0,
                    again=row["outcome"] == "again",
                    upstream=row.get("upstream") or "",
                    model=row.get("model") or "",
                    paid=row.get("paid"),
                )
                for row in rows
                if bodies[row["task_id"]]["request"] is not None  # else it was taken away meanwhile
            ],
            None,
        )

    async def fail(self, failures: Sequence[Failure]) -> Verdicts:
        return verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.fail($1, $2, $3, $4, $5, $6, $7)",
                [each.task_id for each in failures],
                [each.token for each in failures],
                [each.error for each in failures],
                [each.code for each in failures],
                [each.info for each in failures],
                [each.retry for each in failures],
                [interval(each.delay) for each in failures],
            )
        )

    async def release(self, releases: Sequence[Release]) -> Verdicts:
        return verdicts(
            await self._db.fetch(
                f"SELECT * FROM {self._f}.release($1, $2, $3, $4, $5, $6)",
                [each.task_id for each in releases],
                [each.token for each in releases],
                [interval(each.delay) for each in releases],
                [each.code for each in releases],
                [each.reason for each in releases],
                [each.info for each in releases],
            )
        )

    async def checkpoint(
        self, task_id: str, token: int, *, checkpoint: str | None = None, progress: str | None = None
    ) -> str:
        """Save JSON texts with the running attempt. `done` or `stale`."""
        return str(
            await self._db.fetchval(
                f"SELECT {self._f}.checkpoint($1, $2, $3, $4)", task_id, token, checkpoint, progress
            )
        )

    async def intend(self, task_id: str, token: int, account: str, *, retry: bool) -> str:
        """Say that a paid call is about to be sent, at whose cost (JSON text). `done` or `stale`."""
        return str(await self._db.fetchval(f"SELECT {self._f}.intend($1, $2, $3, $4)", task_id, token, account, retry))

    async def save_operation(self, task_id: str, token: int, operation: str) -> str:
        """Save the provider's handle (JSON text) of the call that was accepted. `done`, `stale`, or `cancelled`:
        stale, and the task ended so meanwhile.
        """
        return str(await self._db.fetchval(f"SELECT {self._f}.save_operation($1, $2, $3)", task_id, token, operation))

    async def withdraw(self, task_id: str, token: int) -> str:
        """The intended call was surely not taken by the provider. `done` or `stale`."""
        return str(await self._db.fetchval(f"SELECT {self._f}.withdraw($1, $2)", task_id, token))
