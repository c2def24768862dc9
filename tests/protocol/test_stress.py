"""Ours and the origin's at once, over real connections, some of which die: the limit, and nothing lost."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from taskgate.local.postgres import EmbeddedPostgres
from taskgate.protocol.migrate import migrate
from tests.protocol.origin import OriginWorker
from tests.protocol.tools import Background, Db, until

LIMIT = 5
TASKS = 250
LEASE = 1
WEATHER = (psycopg.errors.LockNotAvailable, psycopg.OperationalError)
"""What a worker meets when its connection is cut or somebody holds a lock: it comes back."""


class Fleet:
    """What the workers know together: how many tasks they run, and which of them they finished."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn, self.seed = dsn, seed
        self.over = threading.Event()
        self.done: Counter[str] = Counter()
        self.refused = 0
        self.samples: Counter[int] = Counter()
        self._lock = threading.Lock()

    def finished(self, task_id: str, accepted: bool) -> None:
        with self._lock:
            if accepted:
                self.done[task_id] += 1
            else:
                self.refused += 1

    def ours(self, number: int) -> Callable[[], None]:
        def life() -> None:
            dice, lives = random.Random(self.seed * 100 + number), 0
            while not self.over.is_set():
                lives += 1
                try:
                    with Db(self.dsn, name="ours") as db:
                        self._one_life(db, f"w{number}.{lives}", dice)
                except WEATHER:
                    continue

        return life

    def _one_life(self, db: Db, name: str, dice: random.Random) -> None:
        """Until it is killed: then what it holds stays running until its lease ends."""
        held: list[tuple[str, int]] = []
        while not self.over.is_set() and dice.random() > 0.01:
            answer = db.claim(name, 3 - len(held), [token for _, token in held], lease=LEASE) if len(held) < 3 else None
            held += answer.pairs if answer else []
            if dice.random() < 0.02:
                time.sleep(2.3)  # frozen past its lease: what it writes then may be late
            if not held:
                time.sleep(0.01)
            for pair in list(held):
                match dice.choice(["complete"] * 5 + ["fail", "release", "renew", "nothing"]):
                    case "complete" if dice.random() < 0.5:
                        tokens = [token for _, token in held]
                        verdicts, more = db.complete_and_claim(
                            pair,
                            worker=name,
                            slots=4 - len(held),
                            held=tokens,
                            lease=LEASE,
                            result=f'{{"token": {pair[1]}}}',
                        )
                        self.finished(pair[0], verdicts == ["done"])
                        held.remove(pair)
                        held += more.pairs
                    case "complete":
                        (verdict,) = db.complete(pair, result=f'{{"token": {pair[1]}}}')
                        self.finished(pair[0], verdict == "done")
                        held.remove(pair)
                    case "fail":
                        db.fail(pair, retry=True, delay=0)
                        held.remove(pair)
                    case "release":
                        db.release(pair)
                        held.remove(pair)
                    case "renew":
                        if db.renew(pair, worker=name, lease=LEASE) == ["stale"]:
                            held.remove(pair)

    def origin(self, number: int) -> Callable[[], None]:
        def life() -> None:
            dice = random.Random(self.seed * 100 + number)
            while not self.over.is_set():
                worker = OriginWorker(psycopg.connect(self.dsn), limit=LIMIT, lease=LEASE, max_attempts=1000)
                try:
                    while not self.over.is_set() and dice.random() > 0.01:
                        task_id = worker.claim()
                        if task_id is None:
                            time.sleep(0.01)
                        elif dice.random() > 0.05:
                            self.finished(task_id, worker.complete(task_id, {"by": "origin"}) == 1)
                except WEATHER:
                    continue
                finally:
                    worker.close()

        return life

    def sampler(self) -> None:
        """Counts in one snapshot after another: each is exact, and none may show more than the limit."""
        with Db(self.dsn) as db:
            while not self.over.is_set():
                self.samples[db.running()] += 1

    def killer(self) -> None:
        """Cuts connections, in the middle of whatever they do."""
        dice = random.Random(self.seed)
        with Db(self.dsn) as db:
            while not self.over.is_set():
                time.sleep(0.15)
                rows = db.run(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'ours' AND datname = current_database()"
                )
                if rows:
                    db.run("SELECT pg_terminate_backend(%s)", dice.choice(rows)["pid"])


@pytest.mark.parametrize("seed", [1])
def test_the_limit_holds_and_nothing_is_lost(either_postgres: EmbeddedPostgres, seed: int) -> None:
    dsn = either_postgres.create_database("stress")
    migrate(dsn, configured={"max_concurrent": LIMIT, "max_attempts": 1000})
    with Db(dsn) as db:
        db.run("UPDATE server_epoch SET seen_at = '-infinity'")
        db.enqueue(*(f"t{i:04}" for i in range(TASKS)))
        fleet = Fleet(dsn, seed)
        lives = [*(fleet.ours(n) for n in range(3)), *(fleet.origin(n) for n in (8, 9)), fleet.sampler, fleet.killer]
        threads = [Background(life) for life in lives]
        try:
            until(
                lambda: db.value("SELECT count(*) FROM tasks WHERE status = 'completed'") == TASKS,
                "every task is completed",
                120,
            )
        finally:
            fleet.over.set()
            for thread in threads:
                thread.result()
        assert max(fleet.samples) == LIMIT, fleet.samples
        assert sum(fleet.samples.values()) > 20
        assert max(fleet.done.values()) == 1, "nobody's result was taken twice"
        # a connection cut in the middle of a write: it may have been taken without the worker learning of it
        assert TASKS - 40 <= len(fleet.done) <= TASKS
        assert db.value("SELECT count(*) FROM tasks WHERE result IS NULL") == 0
        told = db.value(
            "SELECT count(*) FROM tasks t WHERE result ? 'token' AND (result ->> 'token')::bigint <> t.settled_token"
        )
        assert told == 0, "each result is that of the token that settled the task"
        assert db.value("SELECT count(*) FROM task_attempts WHERE outcome = 'lost'") > 0
    either_postgres.drop_database("stress")
