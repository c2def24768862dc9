"""Batches that overlap: one order of locks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.protocol.tools import Background, Db


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
def test_a_batch_waits_for_no_row(db: Db, verb: str) -> None:
    """So two batches that overlap cannot wait for each other, whatever their order."""
    db.enqueue("a", "m", "z")
    a, m, z = db.claim("w", 3).pairs
    settler = db.another()
    with db.another() as operator:
        with operator.connection.transaction():
            operator.run("SELECT FROM tasks WHERE task_id = 'm' FOR UPDATE")
            assert getattr(settler, verb)(z, m, a) == ["done", "busy", "done"]
        assert getattr(settler, verb)(z, m, a) == ["already", "done", "already"]


def test_batches_that_overlap_do_not_deadlock(db: Db) -> None:
    """The same tasks, in opposite orders, renewed, settled, claimed, cancelled and recovered at once."""
    ids = [f"t{i:03}" for i in range(60)]
    db.set_limit(1000)
    db.run("SET deadlock_timeout = '20ms'")
    db.run("UPDATE settings SET max_attempts = 1000")
    db.enqueue(*ids)

    def each(act: Callable[[Db, list[tuple[str, int]]], object]) -> Callable[[], None]:
        def go() -> None:
            with db.another() as mine:
                mine.run("SET deadlock_timeout = '20ms'")
                for _ in range(25):
                    rows = mine.run("SELECT task_id, claim_token FROM tasks WHERE status = 'running'")
                    pairs = [(row["task_id"], row["claim_token"]) for row in rows]
                    act(mine, pairs)

        return go

    acts = (
        lambda mine, pairs: mine.renew(*pairs),
        lambda mine, pairs: mine.renew(*reversed(pairs)),
        lambda mine, pairs: mine.fail(*reversed(pairs[::2]), retry=True, delay=0),
        lambda mine, pairs: mine.release(*pairs[::3]),
        lambda mine, pairs: mine.complete(*reversed(pairs[1:3])),
        lambda mine, pairs: mine.claim("other", 40, types=["llm"]),
        lambda mine, pairs: mine.complete_and_claim(*reversed(pairs[4:6]), worker="third", slots=4),
        lambda mine, pairs: [mine.cancel(task_id) for task_id, _ in pairs[5:8]],
        lambda mine, pairs: mine.recover(),
    )
    db.claim("w", 60)
    for thread in [Background(each(act)) for act in acts]:
        thread.result()
