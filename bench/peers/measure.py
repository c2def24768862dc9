"""The measurements: submit, bulk, drain, latency; each on a PostgreSQL of its own, durable as by default."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg

from bench.peers.adapter import Adapter, AdapterError, done
from bench.peers.catalog import Peer
from bench.peers.redis import redis_server
from bench.report import percentile
from bench.server import bench_server

WARM_UP = 20  # jobs of the latency measurement that do not count
SAMPLES = 200
PATIENCE = 300.0  # seconds


@contextmanager
def ready(peer: Peer, command: Sequence[str], more: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A server with the peer's schema; the environment for its adapter."""
    with bench_server() as server, redis_server(peer.redis) as redis:
        dsn = server.create_database("peers")
        environment = {"PEER_DSN": dsn, "PEER_REDIS": redis, "PEER_CHUNK": str(peer.chunk), **peer.environment, **more}
        done(command, "setup", environment)
        yield environment


def submit(peer: Peer, command: Sequence[str], jobs: int) -> float:
    """Jobs a second, one by one from one process."""
    with ready(peer, command, {}) as environment:
        return _enqueued(command, "submit", environment, jobs)


def bulk(peer: Peer, command: Sequence[str], jobs: int) -> float:
    """Jobs a second through the peer's own bulk interface."""
    with ready(peer, command, {}) as environment:
        return _enqueued(command, "bulk", environment, jobs)


def drain(peer: Peer, command: Sequence[str], jobs: int, slots: int, limit: int = 0) -> float:
    """No-op jobs a second by one worker process, from the first job's start until the last one's end is stored.

    `limit`: of the whole fleet, for a peer that has one; 0: none.

    Raises AdapterError when not every job ended well and was started once.
    """
    with ready(peer, command, {"PEER_SLOTS": str(slots), "PEER_LIMIT": str(limit)}) as environment:
        _enqueued(command, "bulk" if peer.bulk_jobs else "submit", environment, jobs)
        _settle(environment["PEER_DSN"])
        with Adapter(command, "work", environment | {"PEER_COUNT": str(jobs)}) as worker:
            first = worker.wait("first", PATIENCE)["at"]
            last = worker.wait("ran", PATIENCE)["at"]
            if peer.unfinished:
                last = _stored(peer, environment["PEER_DSN"])
        again = [sign for sign in worker.rest() if sign["event"] == "ran"]
        if again:
            raise AdapterError(f"{peer.name} started jobs more than once: {again[-1]['jobs']} starts of {jobs} jobs")
        if peer.finished and (well := _number(environment["PEER_DSN"], peer.finished)) != jobs:
            raise AdapterError(f"{peer.name}: {well} of {jobs} jobs ended well")
        return float(jobs / (last - first))


def latency(peer: Peer, command: Sequence[str], jobs: int = SAMPLES) -> tuple[float, float]:
    """Submit → start of the handler on an idle worker: median and 99th percentile, in milliseconds."""
    more = {"PEER_SLOTS": str(peer.slots[0]), "PEER_LATENCIES": "1", "PEER_NOTIFY": "1"}
    with ready(peer, command, more) as environment:
        _enqueued(command, "submit", environment, 1)  # its start tells that the worker is up
        total = jobs + WARM_UP
        with Adapter(command, "work", environment | {"PEER_COUNT": str(total + 1)}) as worker:
            worker.wait("started", PATIENCE)
            with Adapter(command, "trickle", environment | {"PEER_COUNT": str(total)}) as producer:
                found = [float(worker.wait("started", PATIENCE)["ms"]) for _ in range(total)]
                producer.ended(PATIENCE)
    return percentile(found[WARM_UP:], 50), percentile(found[WARM_UP:], 99)


def _enqueued(command: Sequence[str], verb: str, environment: Mapping[str, str], jobs: int) -> float:
    producer = done(command, verb, {**environment, "PEER_COUNT": str(jobs)}, PATIENCE)
    return float(jobs / producer.wait("submitted", 0)["seconds"])


def _settle(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _stored(peer: Peer, dsn: str) -> float:
    """When the last job's end was in the table, in seconds since the epoch."""
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            row = connection.execute(peer.unfinished.encode()).fetchone()
            if row is not None and not row[0]:
                return time.time()
            if time.monotonic() > deadline:
                raise AdapterError(f"{peer.name}: jobs are left over, though the handler ran for each")
            time.sleep(0.01)  # finer than what is measured needs


def _number(dsn: str, query: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0
