"""Other queues under the same load: `python -m bench.peers all`, `… pgqueuer --what drain`, `… versus`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench import machine
from bench.peers import measure
from bench.peers.adapter import AdapterError
from bench.peers.catalog import PEERS, Peer
from bench.peers.environment import Unavailable, prepare
from bench.peers.reference import judge
from bench.peers.versus import versus
from bench.report import Report
from bench.server import bench_server, server_facts

WHAT = ("submit", "bulk", "drain", "latency")
RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def side_by_side(report: Report, peers: list[Peer], cache: Path, given: argparse.Namespace) -> None:
    for peer in peers:
        try:
            command = prepare(peer, cache)
        except Unavailable as missing:
            report.notes.append(f"NOT MEASURED: {peer.name}: {missing}")
            continue
        for what in given.what.split(","):
            try:
                _measure(report, peer, command, what, given)
            except AdapterError as error:
                report.notes.append(f"NOT MEASURED: {peer.name}, {what}: {error}")
                print(report.notes[-1], file=sys.stderr)


def _measure(report: Report, peer: Peer, command: list[str], what: str, given: argparse.Namespace) -> None:
    def runs(once: Callable[[], float]) -> list[float]:
        values = []
        for _ in range(given.runs):
            values.append(once())
            print(f"{peer.name}, {what}: {values[-1]:,.0f}/s", file=sys.stderr, flush=True)
        return values

    match what:
        case "drain":
            for slots in [given.slots] if given.slots else peer.slots:
                jobs = given.tasks or peer.drain_jobs.get(slots, max(peer.drain_jobs.values()))
                judge(report, peer.name, f"drain@{slots}", runs(lambda: measure.drain(peer, command, jobs, slots)))  # noqa: B023
        case "latency":
            pairs = [measure.latency(peer, command) for _ in range(given.runs)]
            judge(report, peer.name, "latency", [pair[0] for pair in pairs])
            judge(report, peer.name, "latency p99", [pair[1] for pair in pairs])
        case "bulk" if not peer.bulk_jobs:
            report.notes.append(f"{peer.name} has no interface for many jobs at once")
        case "bulk":
            judge(report, peer.name, what, runs(lambda: measure.bulk(peer, command, given.tasks or peer.bulk_jobs)))
        case _:
            judge(report, peer.name, what, runs(lambda: measure.submit(peer, command, given.tasks or peer.submit_jobs)))


def main() -> int:
    """Exit code 1: a target was missed, or a peer's figure does not count."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("peer", choices=[*PEERS, "all", "versus"])
    parser.add_argument("--what", default=",".join(WHAT), help="some of submit,bulk,drain,latency (default: all)")
    parser.add_argument("--tasks", type=int, default=0, help="jobs of one run (default: some seconds' worth)")
    parser.add_argument("--slots", type=int, default=0, help="of the draining worker (default: the peer's best)")
    parser.add_argument("--runs", type=int, default=3, help="of each measurement; rounds of versus (default 3)")
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/taskgate-bench"), help="where the peers are installed"
    )
    parser.add_argument("--record", action="store_true", help=f"append the table to bench/{RESULTS.name}")
    given = parser.parse_args()
    if unknown := set(given.what.split(",")) - set(WHAT):
        parser.error(f"--what: {', '.join(sorted(unknown))} is none of {', '.join(WHAT)}")
    cache = given.cache.expanduser().resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are cleaned up then too
    quiet = machine.look()
    with bench_server() as server:
        facts = server_facts(server.dsn)
    if given.peer == "versus":
        report = Report("Drain of no-op jobs against the fastest peers, interleaved", facts)
        versus(report, cache, given.runs, given.tasks)
    else:
        report = Report("Peers under the same load", facts)
        peers = list(PEERS.values()) if given.peer == "all" else [PEERS[given.peer]]
        side_by_side(report, peers, cache, given)
        report.notes += [
            f"{peer.name}: {', '.join(peer.packages)}. {peer.setting}. After {peer.advice}" for peer in peers
        ]
    today = datetime.now(UTC)
    told = shlex.join(part for part in sys.argv[1:] if part != "--record")
    text = report.markdown(
        f"{today.day} {today:%B %Y}", f"python -m bench.peers {told}", machine.describe(), str(quiet)
    )
    print(text)
    if given.record:
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    wrong = any(note.startswith(("NOT COUNTED", "NOT MEASURED")) for note in report.notes)
    return int(wrong or not all(measure.met for measure in report.measures))


if __name__ == "__main__":
    sys.exit(main())
