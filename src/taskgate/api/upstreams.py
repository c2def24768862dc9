"""Where a task's call will go, as far as it can be told at submission: what cannot work there is refused here."""

from __future__ import annotations

import time

from taskgate.api.problems import Problem
from taskgate.handlers.video.route import route_errors
from taskgate.protocol.calls import Calls
from taskgate.settings import Settings
from taskgate.upstreams import UpstreamDirectory, serves

PLACE = "/taskgate/upstream"
AGAIN_SECONDS = 5.0


class UnknownUpstream(Problem):
    """It may be one that came since the table was last read."""

    def __init__(self, name: str, known: list[str]) -> None:
        words = f"there is no upstream {name!r}; known are: {', '.join(known) or 'none'}"
        super().__init__(422, "unknown_upstream", words, errors=[(PLACE, words)])


class Routing:
    """The upstreams, and the checks that need them. `check` may be called from any thread."""

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self._directory = UpstreamDirectory(calls.upstreams)
        self._settings = settings
        self._read = False
        self._tried_at = float("-inf")

    async def prepare(self) -> None:
        """Before `check`: reads the table the first time, and again in the background when that is long ago."""
        if self._read:
            self._directory.refresh_if_old()
        elif time.monotonic() - self._tried_at > AGAIN_SECONDS:
            await self.refresh()

    async def refresh(self) -> None:
        """Where the database cannot be read, for whatever reason, writing will tell."""
        try:
            await self._directory.refresh()
            self._read = True
        except Exception:
            self._tried_at = time.monotonic()

    def check(self, task_type: str, request: dict[str, object], name: str | None) -> None:
        """`name` is the option `upstream`. Raises UnknownUpstream, or Problem that names the wrong fields."""
        known = self._directory.known
        if name is None:
            model = request.get("model")
            upstream = self._directory.pick(task_type, model if isinstance(model, str) else None)
        elif name in known:
            upstream = known[name]
            if not serves(upstream.api, task_type):
                words = f"the upstream {name!r} speaks {upstream.api}, which takes no {task_type} tasks"
                raise Problem(422, "wrong_upstream", words, errors=[(PLACE, words)])
        else:
            raise UnknownUpstream(name, sorted(known))
        errors = route_errors(request, upstream, self._settings) if task_type == "veo" else []
        if errors:
            detail = f"The request does not fit {task_type}: {errors[0][1]}"
            raise Problem(422, "invalid_request", detail, errors=errors)
