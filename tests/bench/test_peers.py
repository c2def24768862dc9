"""How peers are measured: what an adapter says, what does not count, what cannot be had."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import measure
from bench.peers.adapter import Adapter, AdapterError, done
from bench.peers.catalog import PEERS, Peer, Tool
from bench.peers.environment import Unavailable, prepare
from bench.peers.reference import FIGURES, judge
from bench.report import Report

QUEUE = """
import os, signal, sys, time, psycopg
sys.path.insert(0, os.environ["SIGNS"])
from signs import COUNT, DSN, Jobs, say
database = psycopg.connect(DSN, autocommit=True)
match sys.argv[1]:
    case "setup":
        database.execute("CREATE TABLE jobs (done bool NOT NULL DEFAULT false)")
    case "submit" | "bulk":
        database.execute("INSERT INTO jobs SELECT FROM generate_series(1, %s)", [COUNT])
        say(event="submitted", seconds=0.5)
    case "work":
        print("a line that is no sign", flush=True)
        jobs = Jobs()
        for _ in range(COUNT + int(os.environ.get("TWICE", "0"))):
            jobs.ran()
        database.execute("UPDATE jobs SET done = true WHERE ctid IN (SELECT ctid FROM jobs LIMIT %s)",
                         [COUNT - int(os.environ.get("LOST", "0"))])
        if os.environ.get("LOST"):
            database.execute("DELETE FROM jobs WHERE NOT done")
        signal.pause()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    program = tmp_path / "adapter_of_jobs.py"
    program.write_text(QUEUE)
    return [sys.executable, str(program)]


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setenv("SIGNS", str(Path(measure.__file__).with_name("adapters")))
    return replace(
        PEERS["pgqueuer"],
        name="queue",
        unfinished="SELECT EXISTS (SELECT FROM jobs WHERE NOT done)",
        finished="SELECT count(*) FROM jobs WHERE done",
    )


def test_a_drain_ends_when_the_last_job_is_stored(peer: Peer, command: list[str]) -> None:
    assert measure.drain(peer, command, 100, 10) > 0


@pytest.mark.parametrize(
    ("variable", "words"), [("TWICE", "started jobs more than once: 101 starts"), ("LOST", "99 of 100 jobs ended well")]
)
def test_a_drain_that_went_wrong_has_no_figure(peer: Peer, command: list[str], variable: str, words: str) -> None:
    with pytest.raises(AdapterError, match=words):
        measure.drain(replace(peer, environment={variable: "1"}), command, 100, 10)


def test_submitted_jobs_a_second(peer: Peer, command: list[str]) -> None:
    assert measure.submit(peer, command, 100) == 200


def test_an_adapter_that_fails_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit('no such table')")
    with pytest.raises(AdapterError, match=r"exit code 1\. Its last words: no such table"):
        done([sys.executable, str(program)], "setup", {})
    with (
        Adapter([sys.executable, str(program)], "work", {}) as adapter,
        pytest.raises(AdapterError, match="ended befor"),
    ):
        adapter.wait("first", 30)


@pytest.mark.parametrize(
    ("what", "value", "counts"),
    [("drain@20", 301, True), ("drain@20", 299, False), ("latency", 9.0, True), ("latency", 10.0, False)],
)
def test_a_peer_far_below_its_figure_does_not_count(
    monkeypatch: pytest.MonkeyPatch, what: str, value: float, counts: bool
) -> None:
    monkeypatch.setitem(FIGURES, "queue", {"drain@20": 500, "latency": 5.7})
    report = Report("", "")
    judge(report, "queue", what, [value])
    assert [note.startswith("NOT COUNTED") for note in report.notes] == [not counts]


def test_a_peer_whose_tool_is_missing_says_what_to_install(peer: Peer, tmp_path: Path) -> None:
    wanting = replace(peer, tools=(Tool("no-such-program", "install the package no-such-program"),))
    with pytest.raises(Unavailable, match="install the package no-such-program"):
        prepare(wanting, tmp_path)


def test_every_peer_has_its_adapter_and_its_jobs() -> None:
    for peer in PEERS.values():
        assert Path(measure.__file__).with_name("adapters").joinpath(peer.adapter).exists()
        assert set(peer.slots) == set(peer.drain_jobs)
        assert {f"drain@{slots}" for slots in peer.slots} >= {w for w in FIGURES[peer.name] if w.startswith("drain")}
