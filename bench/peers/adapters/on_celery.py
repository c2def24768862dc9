"""Celery on Redis: threads in one process, results ignored, a task acknowledged after it ran (so that a crash of the
worker loses none, as with the other queues), no gossip, mingle or heartbeat between workers."""

from __future__ import annotations

import sys
import time

from celery import Celery
from signs import COUNT, PAUSE, REDIS, SLOTS, Jobs, payload, say

app = Celery("peer", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=64,  # the advice for tasks that take no time
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,  # the signs go to standard output
)
jobs = Jobs()


@app.task(name="noop")
def noop(sent: float) -> None:
    jobs.ran(sent)


def submit(pause: float = 0.0) -> None:
    begun = time.perf_counter()
    for _ in range(COUNT):
        noop.delay(payload()["sent"])
        if pause:
            time.sleep(pause)
    say(event="submitted", seconds=time.perf_counter() - begun)


match sys.argv[1]:
    case "setup":
        pass
    case "submit":
        submit()
    case "trickle":
        submit(PAUSE)
    case _:
        options = ["--pool=threads", f"--concurrency={SLOTS}", "--loglevel=WARNING"]
        app.worker_main(["worker", *options, "--without-gossip", "--without-mingle", "--without-heartbeat"])
