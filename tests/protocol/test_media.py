"""The verbs of media in SQL: fenced, shared by content, collected when nothing refers to it."""

from __future__ import annotations

import hashlib
import os

import psycopg
import pytest

from tests.protocol.tools import Background, Db, until, waits_for_lock

CHUNK = 262_144


def claimed(db: Db, *ids: str) -> list[tuple[str, int]]:
    db.enqueue(*ids)
    return sorted(db.claim(slots=len(ids)).pairs)


def upload(db: Db, content: bytes) -> int:
    """A blob with all its chunks, in the database."""
    blob = int(db.value("SELECT media_begin()"))
    chunks = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
    for n in range(0, len(chunks), 2):
        assert append(db, blob, n, chunks[n : n + 2]) == "done"
    return blob


def append(db: Db, blob: int, n: int, chunks: list[bytes]) -> str:
    return str(db.value("SELECT media_append(%s, %s, %s::bytea[])", blob, n, chunks))


def attach(db: Db, pair: tuple[str, int], blob: int, content: bytes, name: str = "video") -> str:
    digest = hashlib.sha256(content).hexdigest()
    return str(
        db.value("SELECT media_attach(%s, %s, %s, %s, %s, %s, 'video/mp4')", *pair, name, blob, digest, len(content))
    )


def blobs(db: Db) -> list[int]:
    return [row["id"] for row in db.run("SELECT id FROM media_blobs ORDER BY id")]


def collect(db: Db, store: str = "postgres", grace: float = 0) -> list[int]:
    rows = db.run("SELECT blob FROM media_collect(%s, %s * interval '1 second')", store, grace)
    return sorted(row["blob"] for row in rows)


def content_of(db: Db, blob: int) -> bytes:
    rows = db.run("SELECT data FROM media_chunks WHERE blob = %s ORDER BY n", blob)
    return b"".join(bytes(row["data"]) for row in rows)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5])
def test_what_is_attached_is_what_was_sent(db: Db, size: int) -> None:
    (a,) = claimed(db, "a")
    content = os.urandom(size)
    blob = upload(db, content)
    assert attach(db, a, blob, content) == "done"
    assert content_of(db, blob) == content
    (row,) = db.run("SELECT * FROM task_media JOIN media_blobs ON id = blob")
    assert (row["task_id"], row["name"], row["mime"], row["bytes"]) == ("a", "video", "video/mp4", size)
    assert bytes(row["sha256"]) == hashlib.sha256(content).digest()
    assert db.value("SELECT pg_column_compression(data) IS NULL FROM media_chunks UNION ALL SELECT true LIMIT 1")


def test_every_call_may_come_again(db: Db) -> None:
    (a,) = claimed(db, "a")
    content = os.urandom(2 * CHUNK + 3)
    blob = upload(db, content)
    assert append(db, blob, 0, [content[:CHUNK]]) == "done"
    assert attach(db, a, blob, content) == "done"
    assert attach(db, a, blob, content) == "done"
    assert content_of(db, blob) == content


def test_only_the_live_token_attaches(db: Db) -> None:
    ((a, old),) = claimed(db, "a")
    content = b"paid for"
    blob = upload(db, content)
    db.age(70)
    assert db.recover() == 1
    assert attach(db, (a, old), blob, content) == "stale"
    ((_, new),) = db.claim().pairs
    assert attach(db, (a, old), blob, content) == "stale"
    assert db.run("SELECT FROM task_media") == []
    assert attach(db, (a, new), blob, content) == "done"
    assert db.complete((a, new)) == ["done"]
    late = upload(db, b"late")
    assert attach(db, (a, new), late, b"late") == "stale", "a finished task gets nothing more"


@pytest.mark.parametrize("wrong", ["missing", "middle", "short", "long", "gap"])
def test_chunks_that_are_not_those_bytes(db: Db, wrong: str) -> None:
    (a,) = claimed(db, "a")
    content = os.urandom(2 * CHUNK + 10)
    chunks = [content[:CHUNK], content[CHUNK : 2 * CHUNK], content[2 * CHUNK :]]
    parts = {
        "missing": {0: chunks[0], 1: chunks[1]},
        "middle": {0: chunks[0], 1: chunks[2], 2: chunks[1]},
        "short": {0: chunks[0], 1: chunks[1], 2: chunks[2][:-1]},
        "long": {0: chunks[0], 1: chunks[1], 2: chunks[2] + b"x"},
        "gap": {0: chunks[0], 1: chunks[1], 3: chunks[2]},
    }[wrong]
    blob = int(db.value("SELECT media_begin()"))
    for n, data in parts.items():
        append(db, blob, n, [data])
    assert attach(db, a, blob, content) == "incomplete"
    assert db.run("SELECT FROM task_media") == []


def test_the_same_content_is_there_once(db: Db) -> None:
    a, b = claimed(db, "a", "b")
    first, second = upload(db, b"same"), upload(db, b"same")
    assert attach(db, a, first, b"same") == "done"
    assert attach(db, b, second, b"same") == "shared"
    db.run("SELECT media_discard(%s)", second)
    db.run("SELECT media_discard(%s)", first)  # nothing that is attached is ever discarded
    assert blobs(db) == [first]
    assert {row["blob"] for row in db.run("SELECT blob FROM task_media")} == {first}


def test_the_same_content_at_the_same_moment(db: Db) -> None:
    a, b = claimed(db, "a", "b")
    other = db.another()
    first, second = upload(db, b"same"), upload(db, b"same")
    db.run("BEGIN")
    assert attach(db, a, first, b"same") == "done"
    waiting = Background(lambda: attach(other, b, second, b"same"))
    until(waits_for_lock(db, other.connection.info.backend_pid), "the second to wait")
    db.run("COMMIT")
    assert waiting.result() == "shared"
    assert {row["blob"] for row in db.run("SELECT blob FROM task_media")} == {first}


def test_what_nothing_refers_to_is_collected(db: Db) -> None:
    a, b = claimed(db, "a", "b")
    shared, own, dead = upload(db, b"shared"), upload(db, b"own"), upload(db, b"an upload that died")
    attach(db, a, shared, b"shared")
    attach(db, b, shared, b"shared")
    attach(db, a, own, b"own", name="image")
    assert collect(db, grace=3600) == [], "an upload may be under way"
    assert not db.value("SELECT media_idle('{postgres}')")
    assert not db.value("SELECT media_idle('{file:///elsewhere}', '0')")
    assert db.value("SELECT media_idle('{file:///elsewhere,postgres}', '0')")
    assert collect(db) == [dead]
    db.complete(a, b)
    db.run("UPDATE tasks SET expires_at = now() - interval '1 s' WHERE task_id = 'a'")
    assert db.value("SELECT purge()") == 1
    assert collect(db, grace=3600) == [], "a download may be under way"
    assert collect(db) == [own]
    assert blobs(db) == [shared]
    assert db.run("SELECT FROM media_chunks WHERE blob <> %s", shared) == []
    db.run("DELETE FROM tasks")
    assert collect(db) == [shared]
    assert append(db, shared, 0, [b"x"]) == "gone"


def test_another_content_under_the_same_name(db: Db) -> None:
    ((a, token),) = claimed(db, "a")
    first, second = upload(db, b"first try"), upload(db, b"second try")
    attach(db, (a, token), first, b"first try")
    attach(db, (a, token), second, b"second try")
    assert [row["blob"] for row in db.run("SELECT blob FROM task_media")] == [second]
    assert collect(db) == [first]


def test_truncate_leaves_marks_as_well(db: Db) -> None:
    (a,) = claimed(db, "a")
    blob = upload(db, b"x")
    attach(db, a, blob, b"x")
    db.run("TRUNCATE tasks CASCADE")
    assert collect(db) == [blob]


def test_content_that_is_shared_again_while_it_is_collected(db: Db) -> None:
    """Both orders: the collector first, the new reference first."""
    a, b = claimed(db, "a", "b")
    other = db.another()
    old = upload(db, b"same")
    attach(db, a, old, b"same")
    db.run("DELETE FROM tasks WHERE task_id = 'a'")
    mine = upload(db, b"same")
    db.run("BEGIN")
    assert old in collect(db)
    waiting = Background(lambda: attach(other, b, mine, b"same"))
    until(waits_for_lock(db, other.connection.info.backend_pid), "the reference to wait")
    db.run("ROLLBACK")  # as if this collector had died: what it chose is shared after all
    assert waiting.result() == "shared"
    db.run("BEGIN")
    db.run("DELETE FROM task_media")
    assert attach(db, b, old, b"same") == "done"
    assert collect(other) == [mine], "the row that somebody changes is left alone"
    db.run("COMMIT")
    assert collect(other) == []
    assert blobs(db) == [old]


def test_sharing_and_collecting_all_the_time(db: Db) -> None:
    """Tasks come and go with the same few contents while collectors run: what is attached is always whole."""
    contents = [bytes([n]) * (n * CHUNK + 1) for n in range(3)]

    def work(name: str) -> None:
        with Db(db.dsn) as mine:
            for n in range(25):
                task = f"{name}-{n}"
                mine.enqueue(task, task_type=name)
                ((_, token),) = until(lambda: mine.claim(name, types=(name,)).pairs, "a claim")
                content = contents[n % 3]
                while not stored(mine, (task, token), content):
                    pass
                (row,) = mine.run("SELECT blob FROM task_media WHERE task_id = %s", task)
                assert content_of(mine, row["blob"]) == content
                mine.complete((task, token))
                mine.run("DELETE FROM tasks WHERE task_id = %s", task)

    def stored(mine: Db, pair: tuple[str, int], content: bytes) -> bool:
        """False when it was collected on the way, which is what a grace is for."""
        blob = int(mine.value("SELECT media_begin()"))
        chunks = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
        if append(mine, blob, 0, chunks) == "gone":
            return False
        outcome = attach(mine, pair, blob, content)
        assert outcome in ("done", "shared", "gone")
        return outcome != "gone"

    def tend() -> int:
        with Db(db.dsn) as mine:
            total = 0
            while not all(worker.done for worker in workers):
                total += len(collect(mine, grace=0.3))
            return total

    workers = [Background(lambda name=name: work(name)) for name in ("w1", "w2", "w3")]  # type: ignore[misc]
    collectors = [Background(tend), Background(tend)]
    for worker in workers:
        worker.result()
    assert sum(collector.result() for collector in collectors) > 0
    while collect(db):
        pass
    assert blobs(db) == []


def test_a_store_elsewhere_is_told_what_to_delete(db: Db) -> None:
    a, b = claimed(db, "a", "b")
    store = "s3://bucket/media"
    one = int(db.value("SELECT media_begin(%s, 'ab/one')", store))
    assert attach(db, a, one, b"content") == "done"
    db.run("DELETE FROM tasks WHERE task_id = 'a'")
    assert collect(db) == []
    assert collect(db, store) == [one]
    assert collect(db, store) == [one], "until it is discarded"
    two = int(db.value("SELECT media_begin(%s, 'ab/two')", store))
    assert attach(db, b, one, b"content") == "gone", "its object may be deleted already"
    assert attach(db, b, two, b"content") == "done"
    db.run("SELECT media_discard(%s)", one)
    assert blobs(db) == [two]
    assert collect(db, store) == []


def test_names_and_types_are_checked(db: Db) -> None:
    (a,) = claimed(db, "a")
    blob = upload(db, b"x")
    for name in ("../x", "", "a b", ".x", "x" * 101):
        with pytest.raises(psycopg.errors.CheckViolation):
            attach(db, a, blob, b"x", name=name)
    assert attach(db, a, blob, b"x", name="x" * 100) == "done"


def test_a_citizen_who_knows_only_sql_deletes_tasks(db: Db) -> None:
    (a,) = claimed(db, "a")
    blob = upload(db, b"x")
    attach(db, a, blob, b"x")
    role = f"plain_{os.urandom(4).hex()}"
    db.run(f"CREATE ROLE {role}")
    try:
        db.run(f"GRANT SELECT, DELETE ON public.tasks TO {role}")
        db.run(f"GRANT USAGE ON SCHEMA public TO {role}")
        db.run(f"SET ROLE {role}")
        db.run("DELETE FROM public.tasks WHERE task_id = 'a'")
        db.run("RESET ROLE")
        assert collect(db) == [blob]
    finally:
        db.run("RESET ROLE")
        db.run(f"DROP OWNED BY {role}")
        db.run(f"DROP ROLE {role}")
