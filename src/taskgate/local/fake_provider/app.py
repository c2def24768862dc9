"""The fake provider's routes: the provider's own, and those that steer and watch it."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

from taskgate.local.fake_provider import answers
from taskgate.local.fake_provider.behaviour import BadBehaviour, Behaviour, of_status
from taskgate.local.fake_provider.choose import Chooser
from taskgate.local.fake_provider.google import TokenSide
from taskgate.local.fake_provider.http import Connection, Request, chunk, head
from taskgate.local.fake_provider.journal import Entry, Journal
from taskgate.local.fake_provider.video import VideoSide

JSON = {"content-type": "application/json"}
CHAT = ("/v1/chat/completions", "/chat/completions")


@dataclass(slots=True)
class Call:
    """One call of the chat route: the parsed body is empty if it was refused."""

    entry: Entry
    request: Request
    connection: Connection
    body: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""
    images: int = 0


class App:
    """Answers the requests of every connection. One event loop, so each step between two awaits is atomic."""

    def __init__(self, chooser: Chooser, journal: Journal, api_key: str = "") -> None:
        self.chooser, self.journal, self._api_key = chooser, journal, api_key
        self.video = VideoSide(chooser, journal, api_key)
        self.tokens = TokenSide(api_key or "fake-token")

    async def __call__(self, request: Request, connection: Connection) -> None:
        if request.path in CHAT and request.method == "POST":
            await self._chat(request, connection)
            return
        if self.video.takes(request):
            await self.video(request, connection)
            return
        if self.tokens.takes(request):
            status, headers, value = self.tokens.answer(request)
            body = answers.dump(value)
            connection.write(head(status, headers, len(body), request.keep_alive) + body)
            return
        try:
            status, value = self._control(request)
        except (BadBehaviour, json.JSONDecodeError, UnicodeDecodeError) as error:
            status, value = 400, {"error": {"message": str(error), "type": "invalid_request_error"}}
        body = value if isinstance(value, bytes) else answers.dump(value)
        connection.write(head(status, JSON, len(body), request.keep_alive) + body)

    def _control(self, request: Request) -> tuple[int, Any]:
        chooser, journal = self.chooser, self.journal
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["v1", "models"] | ["models"]:
                return 200, answers.models()
            case "GET", ["health"] | ["healthz"]:
                return 200, {"status": "ok"}
            case "GET", ["stats"]:
                return 200, journal.stats()
            case "POST", ["stats", "reset"]:
                journal.reset()
                chooser.forget()
                self.video.forget()
                return 200, journal.stats()
            case "GET", ["video"]:
                return 200, self.video.summary()
            case "GET", ["log"]:
                limit = query.get("limit", "0")
                return 200, journal.log(query.get("contains", ""), int(limit) if limit.isdigit() else None)
            case "GET", ["log", n, "body"] if n.isdigit():
                body = journal.body(int(n))
                return (200, body) if body is not None else (404, _missing("no body is kept for this number"))
            case "PUT", ["faults"]:
                chooser.set_faults(json.loads(request.body))
                return 200, self._faults()
            case "GET", ["faults"]:
                return 200, self._faults()
            case "PUT", ["scripts"]:
                chooser.set_scripts(json.loads(request.body))
                return 200, self._scripts()
            case "GET", ["scripts"]:
                return 200, self._scripts()
            case "DELETE", ["scripts"]:
                chooser.scripts.clear()
                return 200, self._scripts()
        return 404, _missing(f"the fake provider has no {request.method} {request.path}")

    def _faults(self) -> dict[str, Any]:
        rules = [
            {"fault": rule.behaviour.name, "share": rule.share, "times": rule.times} for rule in self.chooser.faults
        ]
        chooser = self.chooser
        return {"latency": chooser.latency, "jitter": chooser.jitter, "limit": chooser.limit, "faults": rules}

    def _scripts(self) -> dict[str, Any]:
        return {key: {"left": len(rules)} for key, rules in self.chooser.scripts.items()}

    async def _chat(self, request: Request, connection: Connection) -> None:
        call = Call(self.journal.begin(request.headers, request.body), request, connection)
        behaviour = Behaviour("crashed")
        closed = False
        try:
            behaviour = self._read(call)
            call.entry.status = behaviour.status
            await self._answer(call, behaviour)
        except asyncio.CancelledError:
            closed = connection.closed_by_client
            raise
        finally:
            # in the same step as the last write: the client cannot have sent its next request yet
            self.journal.end(call.entry, behaviour.name, closed_by_client=closed)

    def _read(self, call: Call) -> Behaviour:
        try:
            body = json.loads(call.request.body)
        except (ValueError, RecursionError) as error:
            return Behaviour("bad_request", 400, message=f"The body is not JSON: {error}")
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            words = "'messages' must be a list with at least one message."
            return Behaviour("bad_request", 400, message=words, error_type="invalid_request_error")
        text, call.prompt, call.images = answers.prompt_of(body)
        call.body = body
        call.entry.prompt, call.entry.model = text[:500], answers.model_of(body)
        call.entry.stream = body.get("stream") is True
        if self._api_key and not self._authorized(call.request):
            return of_status(401)
        try:
            behaviour, call.entry.key = self.chooser.choose(text, self.journal.in_flight)
        except BadBehaviour as error:
            return Behaviour("bad_marker", 400, message=str(error))
        return behaviour

    def _authorized(self, request: Request) -> bool:
        given = next((value for name, value in request.headers if name.lower() == b"authorization"), b"")
        return hmac.compare_digest(given, f"Bearer {self._api_key}".encode())

    async def _answer(self, call: Call, behaviour: Behaviour) -> None:
        if behaviour.latency:
            await asyncio.sleep(behaviour.latency)
        if behaviour.hang:
            await asyncio.get_running_loop().create_future()
        if behaviour.disconnect == "before":
            call.connection.close()
            return
        headers = {**JSON, "x-request-id": f"req_fake_{call.entry.n}", **_wait_headers(behaviour)}
        headers.update(behaviour.headers or {})
        if behaviour.body is not None:
            raw = behaviour.body
            data = raw.encode() if isinstance(raw, str) else answers.dump(raw)
        elif behaviour.status >= 300:
            data = answers.dump(answers.error(behaviour))
        else:
            text = answers.text_of(behaviour, call.body, call.prompt, call.images)
            if call.entry.stream:
                await self._stream(call, behaviour, text, headers)
                return
            data = answers.dump(answers.completion(behaviour, call.body, call.entry.n, text, call.prompt))
        if behaviour.malformed:
            data = data[: len(data) // 2]
        heading = head(behaviour.status, headers, len(data), call.request.keep_alive)
        await self._send(behaviour, heading, data, call.connection)

    async def _send(self, behaviour: Behaviour, heading: bytes, data: bytes, connection: Connection) -> None:
        if behaviour.header_seconds:
            first, _, heading = heading.partition(b"\r\n")
            connection.write(first + b"\r\n")
            await asyncio.sleep(behaviour.header_seconds)
        if behaviour.disconnect == "middle":
            connection.write(heading + data[: len(data) // 2])
            connection.close()
            return
        if behaviour.body_seconds:
            half = len(data) // 2
            connection.write(heading + data[:half])
            heading, data = b"", data[half:]
            await asyncio.sleep(behaviour.body_seconds)
        connection.write(heading + data)
        await connection.drain()

    async def _stream(self, call: Call, behaviour: Behaviour, text: str, headers: dict[str, str]) -> None:
        connection = call.connection
        headers = {**headers, "content-type": "text/event-stream"}
        connection.write(head(200, headers, None, call.request.keep_alive))
        events = list(answers.chunks(behaviour, call.body, call.entry.n, text, call.prompt))
        for position, event in enumerate(events):
            if behaviour.disconnect == "middle" and position == len(events) // 2:
                connection.close()
                return
            if behaviour.body_seconds and position == len(events) // 2:
                await asyncio.sleep(behaviour.body_seconds)
            broken = behaviour.malformed and position == 1
            connection.write(chunk(event[: len(event) // 2] + b"\n\n" if broken else event))
            await connection.drain()
        connection.write(chunk(b""))


def _wait_headers(behaviour: Behaviour) -> dict[str, str]:
    headers = {}
    if behaviour.retry_after is not None:
        headers["retry-after"] = f"{behaviour.retry_after:g}"
    if behaviour.retry_after_ms is not None:
        headers["retry-after-ms"] = f"{behaviour.retry_after_ms:g}"
    if behaviour.retry_date is not None:
        now = time.time()
        headers["date"] = formatdate(now, usegmt=True)
        headers["retry-after"] = formatdate(now + behaviour.retry_date, usegmt=True)
    return headers


def _missing(words: str) -> dict[str, Any]:
    return {"error": {"message": words, "type": "invalid_request_error", "code": "not_found"}}
