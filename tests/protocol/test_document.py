"""PROTOCOL.md: its SQL runs as printed, and it names what there is."""

from __future__ import annotations

import re
from importlib.resources import files

from tests.protocol.tools import Db

TEXT = (files("taskgate.protocol") / "PROTOCOL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
PSQL = re.findall(r"```psql\n(.*?)```", TEXT, re.DOTALL)


def test_the_blocks_do_what_they_say(db: Db) -> None:
    lock, insert, work, finish = BLOCKS
    db.run(lock)
    db.run(insert)
    cursor = db.connection.execute(work.encode())
    while cursor.nextset():
        if cursor.description and cursor.description[0].name == "task_id":
            (claimed,) = cursor.fetchall()
    assert claimed["task_id"] == "order-17"
    assert db.status("order-17") == "running"
    assert db.connection.execute(finish.encode()).rowcount == 0, "another claim's time"
    mine = finish.replace("2026-01-01 00:00:00+00", str(claimed["locked_until"]))
    assert db.connection.execute(mine.encode()).rowcount == 1
    assert db.status("order-17") == "completed"


def test_the_worker_by_hand(db: Db) -> None:
    db.enqueue("a")
    claim, renew, complete = PSQL[0].strip().splitlines()
    (row,) = db.run(claim.removesuffix("\\gset"))

    def filled(line: str) -> str:
        return line.replace(":'task_id'", f"'{row['task_id']}'").replace(":token", str(row["token"]))

    assert db.run(filled(renew))[0]["outcome"] == "done"
    assert db.run(filled(complete))[0]["outcome"] == "done"
    assert db.task("a")["result"] == {"text": "Hi"}


def test_every_column_and_function_is_named(db: Db) -> None:
    columns = db.run(
        "SELECT column_name AS name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = 'tasks'"
    )
    tables = db.run("SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'taskgate'")
    sequences = db.run("SELECT sequencename AS name FROM pg_sequences WHERE schemaname = 'taskgate'")
    for row in columns + tables + sequences:
        if "yoyo" not in row["name"] and row["name"] != "claim_ledger_id_seq":
            assert f"`{row['name']}" in TEXT or f"{row['name']}`" in TEXT or f" {row['name']}" in TEXT, row["name"]
    verbs = "enqueue claim claimed_bodies renew complete fail release checkpoint recover cancel retry purge"
    for verb in [*verbs.split(), "set_limit", "register_worker", "forget_worker", "await_done"]:
        assert f"{verb}(" in TEXT
