"""dbos: a queue that is polled every 0.05 s (its default of 1 s bounds the rate to the slots a second)."""

from __future__ import annotations

import signal
import sys
import threading
import time

from dbos import DBOS, DBOSClient
from signs import COUNT, DSN, PAUSE, SLOTS, Jobs, payload, say

jobs = Jobs()
VERSION = "1"  # a client's workflow belongs to a version; the worker's is this one


@DBOS.workflow(name="noop")
def noop(sent: float) -> None:
    jobs.ran(sent)


def launch() -> None:
    DBOS(
        config={
            "name": "peer",
            "system_database_url": DSN,
            "application_version": VERSION,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()
    DBOS.register_queue("noop", worker_concurrency=SLOTS, polling_interval_sec=0.05)


def submit(pause: float = 0.0) -> None:
    client = DBOSClient(system_database_url=DSN)
    begun = time.perf_counter()
    for _ in range(COUNT):
        client.enqueue({"queue_name": "noop", "workflow_name": "noop", "app_version": VERSION}, payload()["sent"])
        if pause:
            time.sleep(pause)
    say(event="submitted", seconds=time.perf_counter() - begun)
    client.destroy()


def work() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    launch()
    stop.wait()
    DBOS.destroy()


match sys.argv[1]:
    case "setup":
        launch()
        DBOS.destroy()
    case "submit":
        submit()
    case "trickle":
        submit(PAUSE)
    case _:
        work()
