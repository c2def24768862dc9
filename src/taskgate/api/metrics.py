"""Numbers for Prometheus: what this process did, and the queue's depth from one snapshot of the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from taskgate.protocol.calls import Calls

SNAPSHOT_SECONDS = 10.0


class Metrics:
    """A registry of its own, so that several applications fit into one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "taskgate_http_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "taskgate_http_request_seconds",
            "Time to the answer; held ones (wait=) included",
            ["route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self._batches = Histogram(
            "taskgate_submit_batch_rows",
            "Tasks written by one insert",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200),
            registry=registry,
        )
        gauges = {
            "pending": "Tasks that wait, delayed ones included",
            "running": "Tasks that run",
            "delayed": "Tasks whose time has not come",
            "limit": "Running at once at most, whole fleet",
            "oldest_pending_seconds": "How long the longest waiting task has been due",
            "workers": "Workers seen within two minutes",
            "slots": "Their slots",
        }
        self._gauges = {name: Gauge(f"taskgate_{name}", words, registry=registry) for name, words in gauges.items()}
        self._snapshot_age = Gauge("taskgate_snapshot_age_seconds", "Age of the queue's numbers", registry=registry)
        self._snapshot_at = float("-inf")
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}
        self.batch = self._batches.observe

    def watch(self, waiting: Callable[[], float], queued: Callable[[], float]) -> None:
        """Gauges that are read when asked for: held answers, and submissions that wait for their insert."""
        for name, words, read in (
            ("waiting_clients", "Answers held until a task is final", waiting),
            ("submit_queued", "Submissions that wait for their insert", queued),
        ):
            Gauge(f"taskgate_{name}", words, registry=self._registry).set_function(read)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        children = self._children.get(key)
        if children is None:
            children = self._children[key] = (
                self._requests.labels(method, route, str(status)),
                self._seconds.labels(route),
            )
        children[0].inc()
        children[1].observe(seconds)

    async def render(self, calls: Calls) -> bytes:
        """The text format. Without the database it tells what is known, and how old that is."""
        now = time.monotonic()
        if now - self._snapshot_at > SNAPSHOT_SECONDS:
            try:
                row = await calls.stats()
            except Exception:  # the scrape must tell of the trouble, not suffer from it
                row = None
            if row is not None:
                self._snapshot_at = now
                for name, gauge in self._gauges.items():
                    gauge.set(row[name] or 0)
        self._snapshot_age.set(now - self._snapshot_at)
        return generate_latest(self._registry)
