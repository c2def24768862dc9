"""The fake provider's video side: Gemini operations, Vertex operations and Interactions, and the videos themselves.

Wire formats as google-genai 2.34.0 and 3.6.1 speak them. A submission meets a behaviour by its prompt, as a chat does:
`polls` and `seconds` say when its video is done, `filtered`, `operation_error`, `poll_faults` and `redirect` how it
goes wrong; a `disconnect` comes after the operation was taken, as with a provider that charges for it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections import Counter
from typing import Any

from taskgate.local.fake_provider import answers
from taskgate.local.fake_provider.behaviour import BadBehaviour, Behaviour, of_status
from taskgate.local.fake_provider.choose import Chooser
from taskgate.local.fake_provider.google import error, is_authorized
from taskgate.local.fake_provider.http import Connection, Request, head
from taskgate.local.fake_provider.journal import Journal
from taskgate.local.fake_provider.operations import Operation, interaction, mp4, prompt_of

JSON = {"content-type": "application/json"}
SUBMIT = re.compile(
    r"/v1beta/models/(?P<gemini>[^/:]+):predictLongRunning"
    r"|/v1beta1/(?:projects/[^/]+/locations/[^/]+/)?publishers/google/models/(?P<vertex>[^/:]+):predictLongRunning"
    r"|/v1(?:beta)?/(?P<interactions>interactions)"
)
POLL = re.compile(
    r"/v1beta/models/[^/]+/operations/(?P<gemini>[^/:]+)"
    r"|/v1beta1/projects/.+:(?P<vertex>fetchPredictOperation)"
    r"|/v1(?:beta)?/interactions/(?P<interactions>[^/:]+)"
)
CANCEL = re.compile(r".*/(?:operations|interactions)/([^/:]+)(?::|/)cancel")
FILE = re.compile(r"/v1beta/files/([^/:]+):download|/storage/v1/b/[^/]+/o/[^/]*?(op-\d+)[^/]*")


class VideoSide:
    """All operations of one fake provider."""

    def __init__(self, chooser: Chooser, journal: Journal, api_key: str = "") -> None:
        self._chooser, self._journal, self._api_key = chooser, journal, api_key
        self.forget()

    def forget(self) -> None:
        """Forget every operation and count."""
        self.operations: dict[str, Operation] = {}
        self.counts: Counter[str] = Counter()
        self.keyless_downloads = 0
        self.cancel_refusals: list[int] = []
        """Statuses of the answers to the next cancellations, which do nothing; 0: no answer."""

    def takes(self, request: Request) -> bool:
        path = request.path
        return any(each.fullmatch(path) for each in (SUBMIT, POLL, CANCEL, FILE))

    def summary(self) -> dict[str, Any]:
        """What tests ask: how often each prompt was taken, and what happened to its operations."""
        taken = Counter(each.prompt for each in self.operations.values())
        return {
            "operations": [
                {"id": each.id, "api": each.api, "model": each.model, "prompt": each.prompt, "polls": each.polls,
                 "over": each.is_over, "cancelled": each.cancelled}
                for each in self.operations.values()
            ],
            "taken": dict(taken),
            "most_taken": max(taken.values(), default=0),
            "open": sum(not each.is_over for each in self.operations.values()),
            **{name: self.counts[name] for name in ("polls", "downloads", "cancels")},
        }  # fmt: skip

    async def __call__(self, request: Request, connection: Connection) -> None:
        path = request.path
        if request.method == "POST" and (found := SUBMIT.fullmatch(path)):
            api = str(found.lastgroup)
            await self._submit(api, found[api], request, connection)
        elif not is_authorized(request, self._api_key) and not FILE.fullmatch(path):
            self._send(request, connection, 401, error(of_status(401)))
        elif request.method == "POST" and (found := CANCEL.fullmatch(path)):
            self._cancel(found[1], request, connection)
        elif found := POLL.fullmatch(path):
            self._poll(str(found.lastgroup), found[str(found.lastgroup)], request, connection)
        elif request.method == "GET" and (found := FILE.fullmatch(path)):
            self._download(found[1] or found[2], request, connection)
        else:
            self._send(request, connection, 404, error(of_status(404)))

    async def _submit(self, api: str, model: str, request: Request, connection: Connection) -> None:
        entry = self._journal.begin(request.headers, request.body)
        behaviour, closed = Behaviour("crashed"), False
        try:
            behaviour = self._behaviour(api, entry, request)
            entry.status = behaviour.status
            entry.model = json.loads(request.body).get("model") if api == "interactions" else model
            if behaviour.latency:
                await asyncio.sleep(behaviour.latency)
            if behaviour.hang == "before":
                await asyncio.get_running_loop().create_future()
            if behaviour.status >= 300 and behaviour.body is None:
                self._send(request, connection, behaviour.status, error(behaviour), behaviour)
                return
            operation = self._take(api, str(entry.model), entry.prompt, behaviour, request)
            if behaviour.hang:
                await asyncio.get_running_loop().create_future()
            if behaviour.disconnect == "before":
                connection.close()
                return
            answer = {"name": operation.name} if api != "interactions" else interaction(operation, "in_progress")
            data = answers.dump(answer)
            if behaviour.body is not None:
                data = behaviour.body.encode() if isinstance(behaviour.body, str) else answers.dump(behaviour.body)
            if behaviour.malformed:
                data = data[: len(data) // 2]
            heading = head(behaviour.status, {**JSON, **(behaviour.headers or {})}, len(data), request.keep_alive)
            if behaviour.disconnect == "middle":
                connection.write(heading + data[: len(data) // 2])
                connection.close()
                return
            connection.write(heading + data)
        except asyncio.CancelledError:
            closed = connection.closed_by_client
            raise
        finally:
            self._journal.end(entry, behaviour.name, closed_by_client=closed)

    def _behaviour(self, api: str, entry: Any, request: Request) -> Behaviour:
        try:
            body = json.loads(request.body)
            entry.prompt = prompt_of(api, body)[:500]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
            return Behaviour("bad_request", 400, message=f"The body cannot be read: {problem!r}")
        if not is_authorized(request, self._api_key):
            return of_status(401)
        try:
            behaviour, entry.key = self._chooser.choose(entry.prompt, self._journal.in_flight)
        except BadBehaviour as problem:
            return Behaviour("bad_marker", 400, message=str(problem))
        return behaviour

    def _take(self, api: str, model: str, prompt: str, behaviour: Behaviour, request: Request) -> Operation:
        key = f"op-{len(self.operations) + 1}"
        name, storage = key, ""
        if api == "gemini":
            name = f"models/{model}/operations/{key}"
        elif api == "vertex":
            place = request.path.removeprefix("/v1beta1/").removesuffix(":predictLongRunning")
            place = place if place.startswith("projects/") else f"projects/express/locations/global/{place}"
            name = f"{place}/operations/{key}"
            storage = (json.loads(request.body).get("parameters") or {}).get("storageUri", "")
        operation = Operation(key, api, model, prompt, behaviour, name, storage, time.time())
        self.operations[key] = operation
        return operation

    def _poll(self, api: str, key: str, request: Request, connection: Connection) -> None:
        if api == "vertex":
            try:
                key = str(json.loads(request.body)["operationName"]).rpartition("/")[2]
            except (ValueError, KeyError, TypeError):
                key = ""
        operation = self.operations.get(key)
        if operation is None or operation.api != api or request.method != ("POST" if api == "vertex" else "GET"):
            self._send(request, connection, 404, error(of_status(404)))
            return
        self.counts["polls"] += 1
        operation.polls += 1
        faults = operation.behaviour.poll_faults
        if operation.polls <= len(faults):
            fault = faults[operation.polls - 1]
            if fault == "drop":
                connection.close()
            elif fault == "garbage":
                self._send(request, connection, 200, b"<html>not what you asked for</html>")
            elif fault != "ok":
                self._send(request, connection, int(fault), error(of_status(int(fault))), operation.behaviour)
            if fault != "ok":
                return
        body = self._state(operation, request)
        self._send(request, connection, 200, body, operation.behaviour)

    def _state(self, operation: Operation, request: Request) -> dict[str, Any]:
        behaviour = operation.behaviour
        if operation.api == "interactions":
            return interaction(operation, None, self._videos(operation, request))
        if not operation.is_over:
            return {"name": operation.name, "done": False}
        if operation.cancelled:
            return {
                "name": operation.name,
                "done": True,
                "error": {"code": 1, "message": "The operation was cancelled."},
            }
        if behaviour.operation_error is not None:
            return {"name": operation.name, "done": True, "error": dict(behaviour.operation_error)}
        videos = self._videos(operation, request)
        kept_back: dict[str, Any] = {}
        if behaviour.filtered is not None:
            reasons = [behaviour.filtered] if behaviour.filtered else []
            kept_back = {"raiMediaFilteredCount": 1, "raiMediaFilteredReasons": reasons}
        if operation.api == "vertex":
            return {"name": operation.name, "done": True, "response": {"videos": videos, **kept_back}}
        samples = [{"video": video} for video in videos]
        answer = {"generatedSamples": samples, **kept_back} if samples else kept_back
        return {"name": operation.name, "done": True, "response": {"generateVideoResponse": answer}}

    def _videos(self, operation: Operation, request: Request) -> list[dict[str, Any]]:
        behaviour = operation.behaviour
        if behaviour.filtered is not None or behaviour.operation_error is not None or not operation.is_over:
            return []
        host = next((value.decode() for name, value in request.headers if name.lower() == b"host"), "localhost")
        inline = base64.b64encode(mp4(operation)).decode() if behaviour.delivery == "inline" else ""
        uri = f"http://{host}/v1beta/files/{operation.id}:download?alt=media"
        if operation.api == "vertex":
            if operation.storage:
                return [{"gcsUri": f"{operation.storage.rstrip('/')}/{operation.id}.mp4", "mimeType": "video/mp4"}]
            data = inline or base64.b64encode(mp4(operation)).decode()
            return [{"bytesBase64Encoded": data, "mimeType": "video/mp4"}]
        if operation.api == "interactions":
            return [{"type": "video", "mime_type": "video/mp4", **({"data": inline} if inline else {"uri": uri})}]
        return [{"encodedVideo": inline, "encoding": "video/mp4"} if inline else {"uri": uri}]

    def _cancel(self, key: str, request: Request, connection: Connection) -> None:
        operation = self.operations.get(key)
        if self.cancel_refusals:
            status = self.cancel_refusals.pop(0)
            self.counts["cancels_refused"] += 1
            if status:
                self._send(request, connection, status, error(of_status(status)))
            return
        if operation is None:
            self._send(request, connection, 404, error(of_status(404)))
            return
        self.counts["cancels"] += 1
        operation.cancelled = operation.cancelled or not operation.is_over
        self._send(request, connection, 200, {} if operation.api != "interactions" else interaction(operation, None))

    def _download(self, key: str, request: Request, connection: Connection) -> None:
        operation = self.operations.get(key)
        if operation is None:
            self._send(request, connection, 404, error(of_status(404)))
            return
        if not is_authorized(request, self._api_key):
            self.keyless_downloads += 1
            self._send(request, connection, 403, error(of_status(403)))
            return
        self.counts["downloads"] += 1
        redirect = operation.behaviour.redirect
        if redirect:
            connection.write(head(302, {"location": redirect}, 0, request.keep_alive))
            return
        content = mp4(operation)
        connection.write(head(200, {"content-type": "video/mp4"}, len(content), request.keep_alive) + content)

    def _send(
        self, request: Request, connection: Connection, status: int, value: Any, behaviour: Behaviour | None = None
    ) -> None:
        headers = dict(JSON)
        if behaviour is not None and behaviour.retry_after is not None:
            headers["retry-after"] = f"{behaviour.retry_after:g}"
        data = value if isinstance(value, bytes) else answers.dump(value)
        connection.write(head(status, headers, len(data), request.keep_alive) + data)
