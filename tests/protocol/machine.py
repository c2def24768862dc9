"""The steps of a random walk over the SQL functions, SQL-only citizens among them."""

from __future__ import annotations

import json
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from tests.protocol.tools import Answer
from tests.protocol.walk import Pair, Row, Walk

LEASE = 60.0

workers = st.integers(0, 2)
origins = st.integers(0, 1)
pick = st.integers(0, 1000)


class Machine(Walk):
    @rule(
        count=st.integers(1, 3),
        priority=st.integers(0, 9),
        delay=st.sampled_from([0, 0, 0, 40]),
        tenant=st.sampled_from(["", "a", "b"]),
        model=st.sampled_from(["", "x", "y"]),
    )
    def enqueue(self, count: int, priority: int, delay: int, tenant: str, model: str) -> None:
        ids = [self._new_id() for _ in range(count)]
        options: dict[str, object] = {"priority": priority, "tenant": tenant}
        if delay:
            options["delay_seconds"] = delay
        request = json.dumps({"model": model} if model else {})
        assert self.db.enqueue(*ids, request=request, options=json.dumps(options)) == ["done"] * count
        assert self.db.enqueue(ids[0]) == ["exists"]
        self.ids.update(ids)

    @rule(worker=origins)
    def origin_enqueue(self, worker: int) -> None:
        task_id = self._new_id()
        self.origins[worker].insert(task_id)
        self.ids.add(task_id)

    @rule(worker=workers, slots=st.integers(0, 4), lost=st.booleans())
    def claim(self, worker: int, slots: int, lost: bool) -> None:
        held = [token for _, token in self.told[worker]]
        self.look()
        self._claimed(worker, slots, held, self.db.claim(f"w{worker}", slots, held, lease=LEASE), lost)

    @rule(worker=workers, which=pick, slots=st.integers(1, 4), lost=st.booleans())
    def complete_and_claim(self, worker: int, which: int, slots: int, lost: bool) -> None:
        if not self.believed[worker]:
            return
        pair = self.believed[worker][which % len(self.believed[worker])]
        held = [token for _, token in self.told[worker]]
        row = self.look().get(pair[0])
        mine = self.owner.get(pair[0]) == pair[1]
        (verdict,), answer = self.db.complete_and_claim(
            pair, worker=f"w{worker}", slots=slots, held=held, lease=LEASE, result=f'{{"token": {pair[1]}}}'
        )
        assert answer.outcome != "skipped", "nobody else claims just now"
        self._claimed(worker, slots, held, answer, lost)
        self._judge("complete", worker, pair, verdict, mine, row if pair[0] not in answer.ids else self.before[pair[0]])

    def _claimed(self, worker: int, slots: int, held: list[int], answer: Answer, lost: bool) -> None:
        again = [r for r in answer.rows if r["outcome"] == "again"]
        fresh = [r for r in answer.rows if r["outcome"] == "claimed"]
        for row in again:
            assert row["token"] not in held
            assert self.owner[row["task_id"]] == row["token"], "only what is its own comes again"
        for row in fresh:
            assert row["token"] > self.highest, "tokens rise"
            assert not self.before[row["task_id"]]["alive"], "nobody's live task is taken"
            self.note_claim(row["task_id"], row["token"])
            self.claimed_by_us.add(row["task_id"])
        self.highest = max([self.highest, *(r["token"] for r in fresh)])
        if not lost:
            self.believed[worker] += answer.pairs
            self.told[worker] += answer.pairs
        after = self.look()
        running = sum(r["status"] == "running" for r in after.values())
        free = min(slots - len(again), self.limit - sum(r["status"] == "running" for r in after.values()) + len(fresh))
        waiting = [r for r in after.values() if r["ready"] and self.has_room(r)]
        if fresh:
            lowest = min(self.before[r["task_id"]]["priority"] for r in fresh)
            assert all(r["priority"] <= lowest for r in waiting), "priorities first"
        if answer.outcome == "full":
            assert slots == 0 or running >= self.limit
        elif answer.outcome in ("empty", "unsure", "limited"):
            assert not waiting, "nothing is hidden"
        elif len(fresh) < free:
            assert not waiting, "as many as there is room for"

    @rule(worker=workers, slots=st.integers(1, 4))
    def claim_that_is_rolled_back(self, worker: int, slots: int) -> None:
        before = self.look()
        with self.db.connection.transaction(force_rollback=True):
            answer = self.db.claim(f"w{worker}", slots, [token for _, token in self.told[worker]])
            self.highest = max([self.highest, *answer.tokens])
        assert {i: r["claim_token"] for i, r in self.look().items()} == {i: r["claim_token"] for i, r in before.items()}

    @rule(
        worker=workers,
        which=pick,
        verb=st.sampled_from(["complete", "fail", "retry", "release", "renew", "checkpoint"]),
    )
    def settle(self, worker: int, which: int, verb: str) -> None:
        if not self.believed[worker]:
            return
        pair = self.believed[worker][which % len(self.believed[worker])]
        task_id, token = pair
        row = self.look().get(task_id)
        mine = self.owner.get(task_id) == token
        verdict = self._settle(verb, pair)
        if verb in ("renew", "checkpoint"):
            assert (verdict in ("done", "cancel")) == mine, (verb, verdict)
            if verb == "renew" and mine:
                assert (verdict == "cancel") == (task_id in self.cancelled)
            return
        self._judge(verb, worker, pair, verdict, mine, row)

    def _judge(self, verb: str, worker: int, pair: Pair, verdict: str, mine: bool, row: Row | None) -> None:
        """`row`: how a task stays that this worker does not hold."""
        task_id, token = pair
        if pair in self.told[worker]:
            self.told[worker].remove(pair)
        if mine:
            assert verdict == "done", "the holder's own write is taken, even late, if nobody took the task meanwhile"
            self.settled.add(pair)
            self.owner.pop(task_id, None)
            if verb == "complete" and task_id not in self.cancelled:
                self.results[task_id] = {"token": token}
        else:
            assert verdict == ("already" if pair in self.settled else "stale") or (
                pair in self.settled and verdict == "stale" and task_id not in self.rows
            )
            assert self.look().get(task_id) == row, "a stale write changes nothing"

    @rule(worker=origins)
    def origin_claim(self, worker: int) -> None:
        before = self.look()
        self.origins[worker].limit = self.limit
        task_id = self.origins[worker].claim()
        self.may_end |= {i for i, r in before.items() if not r["alive"]}
        if task_id is not None:
            assert not before[task_id]["alive"]
            self.origin_believes[worker].append(task_id)
            self.note_claim(task_id, f"origin {worker}")

    @rule(worker=origins, which=pick, well=st.booleans())
    def origin_settle(self, worker: int, which: int, well: bool) -> None:
        if not self.origin_believes[worker]:
            return
        task_id = self.origin_believes[worker][which % len(self.origin_believes[worker])]
        row = self.look().get(task_id)
        by = {"origin": worker, "step": len(self.token_of)}
        took = self.origins[worker].complete(task_id, by) if well else self.origins[worker].fail(task_id, "no")
        owner = self.owner.get(task_id)
        if row is None or owner is None:
            assert took == 0, "it is not running, so it is not theirs to end"
        elif owner == f"origin {worker}":
            assert took == 1
        elif isinstance(owner, int) and row["alive"]:
            assert took == 0, "one of ours runs it"
        if took:
            self.owner.pop(task_id, None)
            if well and task_id not in self.cancelled:
                self.results[task_id] = by
        else:
            assert self.look().get(task_id) == row

    @rule(which=pick)
    def cancel(self, which: int) -> None:
        if not self.ids:
            return
        task_id = sorted(self.ids)[which % len(self.ids)]
        row = self.look()[task_id]
        verdict = self.db.cancel(task_id)
        expected = {"pending": ("cancelled",), "running": ("cancelling",)}.get(row["status"], ("finished", "already"))
        assert verdict in expected
        if verdict in ("cancelled", "cancelling"):
            self.cancelled.add(task_id)

    @rule(which=pick)
    def retry(self, which: int) -> None:
        if not self.ids:
            return
        task_id = sorted(self.ids)[which % len(self.ids)]
        row = self.look()[task_id]
        assert self.db.retry(task_id) == ("done" if row["status"] == "failed" else "not_failed")
        if row["status"] == "failed":
            self.cancelled.discard(task_id)

    @rule()
    def recover(self) -> None:
        before = self.look()
        self.db.recover()
        self.may_end |= {i for i, r in before.items() if not r["alive"]}

    @rule(limit=st.integers(0, 5))
    def set_limit(self, limit: int) -> None:
        self.db.set_limit(limit)
        self.limit = limit

    @rule(
        group=st.sampled_from([("tenant", "a"), ("tenant", "*"), ("model", "x"), ("model", "*"), ("type", "llm")]),
        limit=st.sampled_from([None, None, 0, 1, 2]),
    )
    def set_group_limit(self, group: tuple[str, str], limit: int | None) -> None:
        if limit is None:
            self.db.run("SELECT remove_limit(%s, %s)", *group)
            self.limits.pop(group, None)
        else:
            self.db.run("SELECT set_limit(%s, %s, %s)", *group, limit)
            self.limits[group] = limit

    @rule(seconds=st.sampled_from([1, 30, 70, 70, 500]))
    def time_passes(self, seconds: int) -> None:
        self.db.age(seconds)

    @rule()
    def goes_by_the_ledger_alone(self) -> None:
        self.db.no_sweep()

    @rule()
    def the_ledger_is_lost(self) -> None:
        self.db.run("TRUNCATE claim_ledger")

    @precondition(lambda self: any(r["status"] in ("completed", "failed") for r in self.rows.values()))
    @rule()
    def purge(self) -> None:
        self.db.run("UPDATE tasks SET expires_at = now() - interval '1 second' WHERE status IN ('completed', 'failed')")
        gone = {i for i, r in self.look().items() if r["status"] in ("completed", "failed")}
        assert self.db.value("SELECT purge(1000)") == len(gone)
        self.ids -= gone
        for task_id in gone:
            self.results.pop(task_id, None)
            self.settled = {pair for pair in self.settled if pair[0] != task_id}
        # ids come back: a counter in the row would start again, a token from the sequence does not
        self.db.enqueue(*sorted(gone)[:1])
        self.ids |= set(sorted(gone)[:1])
        self.cancelled -= gone

    def _new_id(self) -> str:
        self.made += 1
        return f"t{self.made:03}"

    def _settle(self, verb: str, pair: Pair) -> str:
        calls: dict[str, Callable[[], list[str]]] = {
            "complete": lambda: self.db.complete(pair, result=f'{{"token": {pair[1]}}}'),
            "fail": lambda: self.db.fail(pair),
            "retry": lambda: self.db.fail(pair, retry=True, delay=0),
            "release": lambda: self.db.release(pair),
            "renew": lambda: self.db.renew(pair, lease=LEASE),
            "checkpoint": lambda: [self.db.checkpoint(*pair, '{"x": 1}')],
        }
        return calls[verb]()[0]
