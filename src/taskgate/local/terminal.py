"""What `taskgate up` tells the person at the terminal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path


def say(text: str) -> None:
    """One line for the person at the terminal."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def welcome(url: str, model: str, workers: str, keys: bool, logs: Path) -> str:
    """What is up, and a first task to paste."""
    curl = "curl" if not proxy_catches_loopback(os.environ.get) else "curl --noproxy '*'"
    if keys:
        curl += ' -H "Authorization: Bearer $TASKGATE_API_KEY"'
    return f"""
taskgate is up: {url} with {workers} (docs: {url}/docs, logs: {logs})
Model: {model}

Post a task, then read its result (put the task_id of the first answer in the second line):

  {curl} -X POST {url}/tasks -H 'Content-Type: application/json' -d '{{"prompt":"What is the capital of France?"}}'
  {curl} '{url}/tasks/TASK_ID?wait=30'

The tasks with SQL: taskgate psql (the URL: taskgate psql --print-url).
Handlers of yours: taskgate worker --app MODULE. Both find this by themselves.

Ctrl-C stops everything; the data stays. What happens from here on:
"""


def stopping(running: int | None, grace: float) -> str:
    """What the end waits for; None: it is not known how many tasks run."""
    if running == 0:
        return "Stopping (once more: at once) ..."
    what = "the running tasks" if running is None else f"{running} running task{'s' if running != 1 else ''}"
    return f"Stopping: waiting for {what}, {grace:g} s at most (once more: at once) ..."


def proxy_catches_loopback(get: Callable[[str], str | None]) -> bool:
    """Whether curl would send http://127.0.0.1 to a proxy. It reads http_proxy in lower case only."""
    proxy = get("http_proxy") or get("all_proxy") or get("ALL_PROXY")
    exempt = (get("no_proxy") or get("NO_PROXY") or "").replace(" ", "").split(",")
    return bool(proxy) and "*" not in exempt and "127.0.0.1" not in exempt
