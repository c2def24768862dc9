"""What a random walk over the SQL functions believes, and what must hold after each of its steps."""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.protocol.origin import OriginWorker
from tests.protocol.tools import Db

MAX_ATTEMPTS = 3
CLEAN = """
    TRUNCATE tasks, claim_ledger, flows, limits CASCADE; UPDATE settings SET max_concurrent = 2, ageing = '0';
    UPDATE server_epoch SET seen_at = '-infinity'
"""
LOOK = """
    SELECT task_id, status, task_type, tenant, model, priority, attempts, claim_token, settled_token, worker_id, result,
           error, run_at, started_at, finished_at, expires_at,
           status = 'running' AND locked_until > clock_timestamp() + interval '1 second' AS alive,
           status = 'running' AND locked_until < clock_timestamp() - interval '2 seconds' AS dead,
           status = 'pending' AND (run_at IS NULL OR run_at < clock_timestamp()) AS ready
    FROM tasks
"""
LEDGER = """
    SELECT count(*) FROM tasks t WHERE t.status = 'running' AND NOT EXISTS (
        SELECT FROM last_ledger() l WHERE t.claim_token = ANY (l.live) OR t.claim_token > l.max_token)
"""
Pair = tuple[str, int]
Row = dict[str, Any]


class Walk(RuleBasedStateMachine):
    """Three workers of ours and two of the origin. Each believes what it was told, long after it is true."""

    def __init__(self, db: Db, origin_workers: list[OriginWorker]) -> None:
        super().__init__()
        self.db, self.origins = db, origin_workers
        db.connection.execute(CLEAN.encode())
        self.limit = 2
        self.ids: set[str] = set()
        self.made = 0
        self.believed: list[list[Pair]] = [[], [], []]
        self.told: list[list[Pair]] = [[], [], []]  # believed, and not settled yet: what `held` names
        self.origin_believes: list[list[str]] = [[], []]
        self.owner: dict[str, int | str] = {}  # a token of ours, or "origin 0"
        self.settled: set[Pair] = set()
        self.results: dict[str, Any] = {}
        self.cancelled: set[str] = set()
        self.token_of: dict[int, str] = {}
        self.highest = int(db.value("SELECT last_value FROM claim_token_seq"))
        self.before: dict[str, Row] = {}
        self.rows: dict[str, Row] = {}
        self.may_end: set[str] = set()  # tasks that this step was allowed to take from their owner
        self.claimed: set[str] = set()
        self.claimed_by_us: set[str] = set()
        self.limits: dict[tuple[str, str], int] = {}  # of groups; name * for each

    @invariant()
    def nothing_is_broken(self) -> None:
        before, rows = self.rows, self.look(remember=True)
        assert set(rows) == self.ids, "no task is lost, none comes from nowhere"
        running = {i for i, r in rows.items() if r["status"] == "running"}
        was_running = sum(r["status"] == "running" for r in before.values())
        assert len(running) <= max(self.limit, was_running), "the limit"
        for scope, name in self._groups(rows):
            if any(rows[i]["status"] == "running" and self._in(rows[i], scope, name) for i in self.claimed_by_us):
                assert self.room(rows, scope, name) >= 0, (scope, name, "the limit of a group")
        self.claimed_by_us.clear()
        assert self.db.value(LEDGER) == 0, "the ledger knows every running token"
        tokens = [rows[i]["claim_token"] for i in running]
        assert len(set(tokens)) == len(tokens)
        for task_id, row in rows.items():
            token = row["claim_token"]
            assert self.token_of.setdefault(token, task_id) == task_id or token == 0, "a token is given out once"
            if task_id in before and task_id not in self.claimed:
                assert token >= before[task_id]["claim_token"] or before[task_id]["status"] in ("completed", "failed")
            assert row["attempts"] <= MAX_ATTEMPTS
            owner = self.owner.get(task_id)
            if owner is not None and row["status"] != "running":
                assert task_id in self.may_end or before[task_id]["dead"] or not before[task_id]["alive"]
                self.owner.pop(task_id, None)
            if owner is None:
                assert row["status"] != "running" or task_id in self.owner, "somebody holds every running task"
            if isinstance(owner, int) and row["status"] == "running":
                assert token == owner
            if row["status"] == "completed":
                assert row["result"] == self.results[task_id], "the result is the last holder's"
                assert row["error"] is None
            else:
                assert row["result"] is None
            final = row["status"] in ("completed", "failed")
            assert (row["finished_at"] is not None) == final
            assert final == (row["expires_at"] is not None)
            if task_id in self.cancelled and final:
                assert row["error"] == "cancelled"
        self.may_end, self.claimed = set(), set()

    def _in(self, row: Row, scope: str, name: str) -> bool:
        return bool(row["task_type" if scope == "type" else scope] == name)

    def _groups(self, rows: dict[str, Row]) -> set[tuple[str, str]]:
        scopes = (("type", "task_type"), ("tenant", "tenant"), ("model", "model"))
        return {(scope, row[column]) for row in rows.values() for scope, column in scopes if row[column]}

    def room(self, rows: dict[str, Row], scope: str, name: str) -> int:
        limit = self.limits.get((scope, name), self.limits.get((scope, "*"), 1000))
        return limit - len([r for r in rows.values() if r["status"] == "running" and self._in(r, scope, name)])

    def has_room(self, row: Row) -> bool:
        names = {"type": row["task_type"], "tenant": row["tenant"], "model": row["model"]}
        return all(self.room(self.before, scope, name) > 0 for scope, name in names.items() if name)

    def look(self, remember: bool = False) -> dict[str, Row]:
        found = {row["task_id"]: row for row in self.db.run(LOOK)}
        self.before = found
        if remember:
            self.rows = found
        return found

    def note_claim(self, task_id: str, owner: int | str) -> None:
        self.owner[task_id] = owner
        self.claimed.add(task_id)
