"""The SQL functions as a test calls them, and a hand on the clock of the rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

DEADLINE = 60.0


@dataclass
class Answer:
    """What claim said."""

    outcome: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    next_due: Any = None

    @property
    def ids(self) -> list[str]:
        return [row["task_id"] for row in self.rows]

    @property
    def tokens(self) -> list[int]:
        return [row["token"] for row in self.rows]

    @property
    def pairs(self) -> list[tuple[str, int]]:
        return list(zip(self.ids, self.tokens, strict=True))


class Db:
    """One connection of one citizen; `functions` is the schema of the functions."""

    def __init__(self, dsn: str, *, schema: str = "public", functions: str = "taskgate", name: str = "test") -> None:
        self.dsn, self.schema, self.functions = dsn, schema, functions
        self._others: list[Db] = []
        self.connection: psycopg.Connection[dict[str, Any]] = psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row, application_name=name
        )
        self.connection.execute(f"SET search_path = {functions}, {schema}".encode())

    def __enter__(self) -> Db:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for other in self._others:
            other.close()
        self.connection.close()

    def another(self) -> Db:
        """One more connection; closed with this one at the latest."""
        more = Db(self.dsn, schema=self.schema, functions=self.functions)
        self._others.append(more)
        return more

    def run(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *values: Any) -> Any:
        (row,) = self.run(statement, *values)
        (value,) = row.values()
        return value

    # the verbs

    def enqueue(self, *ids: str, task_type: str = "llm", request: str = "{}", options: str | None = None) -> list[str]:
        return [
            row["outcome"]
            for row in self.run(
                "SELECT outcome FROM enqueue(%s, %s, %s, NULL, %s)",
                list(ids),
                [task_type] * len(ids),
                [request] * len(ids),
                [options] * len(ids),
            )
        ]

    def enqueue_and_flush(self, *ids: str, request: str = "{}") -> list[str]:
        outcomes: list[str] = self.value(
            f"CALL {self.functions}.enqueue_and_flush(%s, %s, %s)",
            list(ids),
            ["llm"] * len(ids),
            [request] * len(ids),
        )
        return outcomes

    def claim(
        self,
        worker: str = "w",
        slots: int = 1,
        held: Sequence[int] = (),
        lease: float = 60,
        types: Sequence[str] | None = ("llm",),
        listener: int | None = None,
        ahead: int | None = None,
    ) -> Answer:
        rows = self.run(
            "SELECT * FROM claim(%s, %s, %s, %s * interval '1 second', %s, p_listener => %s, p_ahead => %s)",
            worker,
            slots,
            list(held),
            lease,
            None if types is None else list(types),
            listener,
            ahead,
        )
        if rows[0]["task_id"] is None:
            return Answer(rows[0]["outcome"], [], rows[0]["next_due"])
        return Answer("claimed", rows)

    def complete(self, *pairs: tuple[str, int], result: str = "{}") -> list[str]:
        return self._verdicts("complete", pairs, [result] * len(pairs))

    def complete_and_claim(
        self,
        *pairs: tuple[str, int],
        worker: str = "w",
        slots: int = 1,
        held: Sequence[int] | None = None,
        lease: float = 60,
        types: Sequence[str] = ("llm",),
        ahead: int | None = None,
        result: str = "{}",
    ) -> tuple[list[str], Answer]:
        """A verdict for each pair, and what the claim said, or `skipped`. `held`: the pairs' when not given."""
        rows = self.run(
            "SELECT * FROM complete_and_claim(%s, %s, %s, %s, %s, %s, %s * interval '1 second', %s, NULL, %s)",
            [i for i, _ in pairs],
            [t for _, t in pairs],
            [result] * len(pairs),
            worker,
            slots,
            [t for _, t in pairs] if held is None else list(held),
            lease,
            list(types),
            ahead,
        )
        claimed = [row for row in rows if row["task_id"] is None or row["outcome"] in ("claimed", "again")]
        told = {(row["task_id"], row["token"]): row["outcome"] for row in rows if row not in claimed}
        assert "done" not in told.values()
        verdicts = [told.pop(pair, "done") for pair in pairs]
        assert not told
        if not claimed:
            return verdicts, Answer("skipped")
        if claimed[0]["task_id"] is None:
            return verdicts, Answer(claimed[0]["outcome"], [], claimed[0]["next_due"])
        return verdicts, Answer("claimed", claimed)

    def _verdicts(self, verb: str, pairs: Sequence[tuple[str, int]], values: list[str]) -> list[str]:
        rows = self.run(f"SELECT * FROM {verb}(%s, %s, %s)", [i for i, _ in pairs], [t for _, t in pairs], values)
        assert [(row["task_id"], row["token"]) for row in rows] == list(pairs), "one answer a row, in order"
        return [row["outcome"] for row in rows]

    def fail(
        self,
        *pairs: tuple[str, int],
        error: str = "it broke",
        code: str = "broken",
        retry: bool = False,
        delay: float | None = None,
    ) -> list[str]:
        n = len(pairs)
        return [
            row["outcome"]
            for row in self.run(
                "SELECT outcome FROM fail(%s, %s, %s, %s, NULL, %s,"
                " (SELECT array_agg(d * interval '1 second') FROM unnest(%s::float8[]) d))",
                [i for i, _ in pairs],
                [t for _, t in pairs],
                [error] * n,
                [code] * n,
                [retry] * n,
                [delay] * n,
            )
        ]

    def release(self, *pairs: tuple[str, int], delay: float = 0, code: str = "released") -> list[str]:
        n = len(pairs)
        return [
            row["outcome"]
            for row in self.run(
                "SELECT outcome FROM release(%s, %s, (SELECT array_agg(d * interval '1 second')"
                " FROM unnest(%s::float8[]) d), %s, %s, NULL)",
                [i for i, _ in pairs],
                [t for _, t in pairs],
                [delay] * n,
                [code] * n,
                ["said so"] * n,
            )
        ]

    def renew(self, *pairs: tuple[str, int], worker: str = "w", lease: float = 60) -> list[str]:
        rows = self.run(
            "SELECT * FROM renew(%s, %s, %s, %s * interval '1 second')",
            worker,
            [i for i, _ in pairs],
            [t for _, t in pairs],
            lease,
        )
        told = {(row["task_id"], row["token"]): row["outcome"] for row in rows}
        return [told[pair] for pair in pairs]

    def checkpoint(self, task_id: str, token: int, checkpoint: str) -> str:
        return str(self.value("SELECT checkpoint(%s, %s, %s)", task_id, token, checkpoint))

    def recover(self) -> int:
        return int(self.value("SELECT recover()"))

    def cancel(self, task_id: str) -> str:
        return str(self.value("SELECT cancel(%s)", task_id))

    def retry(self, task_id: str) -> str:
        return str(self.value("SELECT retry(%s)", task_id))

    def set_limit(self, limit: int) -> None:
        self.run("SELECT set_limit(%s)", limit)

    # looking

    def task(self, task_id: str) -> dict[str, Any]:
        (row,) = self.run("SELECT * FROM tasks WHERE task_id = %s", task_id)
        return row

    def status(self, task_id: str) -> str:
        return str(self.task(task_id)["status"])

    def history(self, task_id: str) -> list[dict[str, Any]]:
        return self.run("SELECT * FROM task_history WHERE task_id = %s ORDER BY token", task_id)

    def running(self) -> int:
        return int(self.value("SELECT count(*) FROM tasks WHERE status = 'running' AND request IS NOT NULL"))

    # the clock

    def age(self, seconds: float, *ids: str) -> None:
        """Lets so much time pass for these tasks (none: for all), and for the sweep and the server's epoch."""
        step = f"{seconds} * interval '1 second'"
        self.run(
            f"UPDATE tasks SET locked_until = locked_until - {step}, updated_at = updated_at - {step},"
            f" run_at = run_at - {step}, start_before = start_before - {step}, expires_at = expires_at - {step}"
            " WHERE %s::text[] IS NULL OR task_id = ANY (%s)",
            list(ids) or None,
            list(ids) or None,
        )
        self.run(f"UPDATE cooldowns SET until = until - {step}")
        self.run(f"UPDATE server_epoch SET seen_at = seen_at - {step}")
        self.run(
            f"UPDATE claim_ledger SET swept_at = swept_at - {step}, due_marks ="
            f" (SELECT coalesce(array_agg(m - {step} ORDER BY o), '{{}}')"
            " FROM unnest(due_marks) WITH ORDINALITY u (m, o))"
            " WHERE id = (SELECT max(id) FROM claim_ledger)"
        )

    def sweep_next(self) -> None:
        """The next call sweeps, however dear the last sweep was."""
        self.run("UPDATE claim_ledger SET swept_at = clock_timestamp() - interval '61 seconds'")

    def no_sweep(self) -> None:
        """The next calls go by the ledger alone, as they do within a second of a sweep."""
        self.run(
            "UPDATE claim_ledger SET swept_at = clock_timestamp(), sweep_cost = '10 s'"
            " WHERE id = (SELECT max(id) FROM claim_ledger)"
        )


def until(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """Polls until the condition holds; fails with `what` when the deadline passes."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline:g} s in vain: {what}")
        time.sleep(0.01)
    return value


def waits_for_lock(db: Db, pid: int) -> Callable[[], bool]:
    """Whether that session waits for a lock."""
    return lambda: bool(db.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", pid))


class Background:
    """Runs a call in a thread; `result()` waits for it and passes its error on."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # handed to the waiter
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, deadline: float = DEADLINE) -> Any:
        self._thread.join(deadline)
        assert self.done, "the call did not come back"
        if self._error is not None:
            raise self._error
        return self._value
