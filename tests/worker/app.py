"""Handlers that do what handlers do wrong, and one that calls a provider."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from taskgate import Handlers, PermanentError, Retry, Snooze, Task, Throttled

handlers = Handlers()


class Model(BaseModel):
    name: str
    size: int = 1


@dataclass
class Point:
    x: int
    y: float


@handlers.handler("noop")
async def noop(task: Task[Any]) -> None:
    return None


@handlers.handler("sleep")
async def sleep(task: Task[Any]) -> str:
    await asyncio.sleep(task.request["seconds"])
    return f"slept, attempt {task.attempt}"


@handlers.handler("span")
@handlers.handler("other")
async def span(task: Task[Any]) -> dict[str, Any]:
    """As go/internal/span does: when it ran and where, for so many seconds, or until there is a file."""
    begun = time.time()
    if task.request.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "until" in task.request:
        await asyncio.to_thread(_wait_for, Path(task.request["until"]))
    elif task.request.get("seconds"):
        await asyncio.sleep(task.request["seconds"])
    return {"begun": begun, "ended": time.time(), "worker": os.getpid()}


@handlers.handler("nap")
def nap(task: Task[Any]) -> str:
    """A plain function: it runs in a thread, and looks whether it shall stop when asked to."""
    until = time.monotonic() + task.request["seconds"]
    while time.monotonic() < until:
        if task.request.get("looks") and task.cancel_reason:
            return f"stopped: {task.cancel_reason}"
        time.sleep(0.01)
    return f"napped, attempt {task.attempt}"


@handlers.handler("block")
async def block(task: Task[Any]) -> str:
    """Blocks the event loop, which no handler should do."""
    time.sleep(task.request["seconds"])  # noqa: ASYNC251
    return "blocked"


@handlers.handler("spin")
async def spin(task: Task[Any]) -> str:
    """Never lets go of the event loop, at the first attempt."""
    while task.attempt == 1:
        pass
    return "no more"


class Mute(Exception):
    """Raises what it is made of when asked for its text."""

    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


class Masked(type(Exception)):  # type: ignore[misc]
    """The type of exceptions that do not even tell their name."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise SystemExit(9)
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Masked):
    pass


class Unmade(PermanentError):
    """Does not call its base's `__init__`."""

    def __init__(self) -> None:
        pass


def evil(what: str) -> Any:
    """Raise, or return, what is hard to tell of."""
    match what:
        case "mute exit":
            raise Mute(SystemExit(3))
        case "mute interrupt":
            raise Mute(KeyboardInterrupt())
        case "mute generator":
            raise Mute(GeneratorExit())
        case "mute cancel":
            raise Mute(asyncio.CancelledError())
        case "nameless":
            raise Nameless
        case "generator exit":
            raise GeneratorExit
        case "stop iteration":
            raise StopIteration
        case "group":
            raise BaseExceptionGroup("g", [ValueError(1), SystemExit(2)])
        case "mute message":
            raise PermanentError(Mute(SystemExit(4)))  # type: ignore[arg-type]
        case "mute info":
            raise PermanentError("with info", info=[Mute(SystemExit(5))])
        case "unmade":
            raise Unmade
        case "mute result":
            return {"a": Mute(SystemExit(6))}
        case "snooze none":
            raise Snooze("not now", after=None)  # type: ignore[arg-type]
        case "snooze nan":
            raise Snooze("not now", after=math.nan)
        case "snooze negative":
            raise Throttled("not now", after=-1)
        case "retry strange":
            raise Retry("again", after="soon")  # type: ignore[arg-type]
        case "too big":
            return 10**140_000
    raise AssertionError(what)


@handlers.handler("evil")
async def evil_async(task: Task[Any]) -> Any:
    return evil(task.request["what"])


@handlers.handler("evil-sync")
def evil_sync(task: Task[Any]) -> Any:
    return evil(task.request["what"])


@handlers.handler("swallow")
async def swallow(task: Task[Any]) -> str:
    """Does not stop when cancelled."""
    until = time.monotonic() + task.request["seconds"]
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return "swallowed"


@handlers.handler("typed")
async def typed(task: Task[Model]) -> Model:
    return Model(name=task.request.name.upper(), size=task.request.size + 1)


@handlers.handler("quick", timeout=0.3)
async def quick(task: Task[Any]) -> None:
    await asyncio.sleep(3600)


@handlers.handler("checkpoint")
async def checkpoint(task: Task[Any]) -> dict[str, Any]:
    if task.checkpoint is None:
        await task.report_progress({"done": 0.5})
        await task.save_checkpoint({"page": 7, "nul": "a\0b"})
        raise Retry("once more", after=0)
    return {"from": task.checkpoint, "attempt": task.attempt}


@handlers.handler("checkpoint-sync")
def checkpoint_sync(task: Task[Any]) -> Any:
    if task.checkpoint is None:
        task.save_checkpoint_sync([1, 2])
        raise Retry("once more", after=0)
    return task.checkpoint


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.02)


@handlers.handler("media")
async def media(task: Task[Any]) -> Any:
    """Stores `pieces` times `size` bytes; with `stop` it ends in between, with `file` it waits for that one."""
    request = task.request

    async def pieces() -> AsyncIterator[bytes]:
        for n in range(request["pieces"]):
            if n == request.get("stop"):
                raise PermanentError("the source broke off")
            yield bytes([n % 256]) * request["size"]
        if "file" in request:
            await task.report_progress("waiting")
            await asyncio.to_thread(_wait_for, Path(request["file"]))

    return await task.store_media("video", pieces(), "video/mp4")


@handlers.handler("media-sync")
def media_sync(task: Task[Any]) -> Any:
    pieces = (bytes([n % 256]) * task.request["size"] for n in range(task.request["pieces"]))
    return [
        task.store_media_sync("video", pieces, "video/mp4"),
        task.store_media_sync("note", b"a text", "text/plain"),
    ]


@handlers.handler("do")
async def do(task: Task[Any]) -> Any:
    """Whatever the request's `what` says."""
    match task.request["what"]:
        case "raise":
            raise ValueError(task.request.get("text", "wrong \0 \ud800 " + "x" * 5000))
        case "exit":
            raise SystemExit(7)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancel itself":
            raise asyncio.CancelledError
        case "stop iteration":
            raise StopIteration
        case "permanent":
            raise PermanentError("never", code="no_such_thing", info={"provider": "says no"})
        case "retry":
            if task.attempt < 3:
                raise Retry("again", after=0, info={1, 2})
            return "third"
        case "snooze":
            if Path(task.request["file"]).exists():  # noqa: ASYNC240
                return task.attempt
            Path(task.request["file"]).touch()  # noqa: ASYNC240
            raise Snooze("later", after=0.1)
        case "throttled":
            raise Throttled("429", after=5000)
        case "strange retry":
            raise Retry(7, after=math.nan, code="a\0b", info=object())  # type: ignore[arg-type]
        case "object":
            return object()
        case "nan":
            return {"value": math.nan}
        case "circle":
            circle: list[Any] = []
            circle.append(circle)
            return circle
        case "deep":
            deep: list[Any] = []
            for _ in range(20_000):
                deep = [deep]
            return deep
        case "large":
            return "x" * task.request["bytes"]
        case "strange text":
            return {"nul\0": "a\0b", "lone": "\ud83d", "escaped": "\\u0000", "pair": "\U0001f600"}
        case "values":
            return {"model": Model(name="m"), "point": Point(1, 2.5), "set": {1}, "none": None, "big": 2**70}
    raise AssertionError(task.request)


@handlers.handler("call")
async def call(task: Task[Any]) -> str:
    """A call to an OpenAI-shaped provider over a plain socket: cancelling it closes the connection."""
    url = urlsplit(os.environ["TEST_PROVIDER"])
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task.request["prompt"]}]}).encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise Retry(head.decode("latin-1")[:100], after=0.1)
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    finally:
        writer.close()
