"""The application: FastAPI for documentation and the many cool routes, plain ASGI for the few hot ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from taskgate import __version__
from taskgate.api import actions, docs, health, info, media
from taskgate.api.context import Context, make_context
from taskgate.api.http import Disconnected, respond
from taskgate.api.problems import Problem, pointer
from taskgate.api.read import get_task
from taskgate.api.schema_watch import watch_schema
from taskgate.api.submit import submit
from taskgate.logs import get_logger
from taskgate.settings import Settings
from taskgate.upkeep import upkeep

log = get_logger("api")

INTERNAL_ERROR = Problem(500, "internal_error", "Something went wrong here; the log has the details.")


class Application(FastAPI):
    """Answers the hot routes itself and leaves the others to FastAPI. `context` is there once it has started."""

    context: Context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await super().__call__(scope, receive, send)
        began = time.monotonic()
        status = 500
        route = "other"

        async def noting_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            method: str = scope["method"]
            parts = _segments(scope)  # "", "tasks", …
            if parts[1:2] == ["tasks"]:
                if method == "POST" and parts[2:] in ([], [""]):
                    route = "/tasks"
                    status = await submit(self.context, scope, receive, send, "llm")
                    return None
                if method == "POST" and len(parts) == 3 and parts[2]:
                    route = "/tasks/{task_type}"
                    status = await submit(self.context, scope, receive, send, parts[2])
                    return None
                if method == "GET" and len(parts) == 3 and parts[2]:
                    route = "/tasks/{task_id}"
                    status = await get_task(self.context, scope, receive, send, parts[2])
                    return None
                if method not in ("GET", "POST") and len(parts) in (2, 3):
                    raise not_allowed(method, "GET, POST")
            await super().__call__(scope, receive, noting_send)
            route = getattr(scope.get("route"), "path_format", "other")
        except Problem as problem:
            status = problem.status
            await respond(send, problem.status, problem.body, problem.response_headers)
        except Disconnected:
            status = 499
        except Exception:
            log.exception("request_failed", method=scope["method"], route=route)
            with contextlib.suppress(Exception):  # an answer may have begun
                await respond(send, 500, INTERNAL_ERROR.body, INTERNAL_ERROR.response_headers)
        finally:
            self.context.metrics.request(_method(scope["method"]), route, status, time.monotonic() - began)
        return None


def _segments(scope: Scope) -> list[str]:
    """The path's parts, each decoded by itself: a `%2F` belongs to an id."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2" not in raw:  # F or f
        path: str = scope["path"]
        return path.split("/")
    return [unquote(part) for part in raw.decode("ascii").split("/")]


def _method(method: str) -> str:
    return method if method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS") else "other"


def not_allowed(method: str, allowed: str) -> Problem:
    detail = f"{method} is not allowed here, only {allowed}."
    if method == "DELETE":
        detail += " A task is ended by POST /tasks/{task_id}/cancel, and purged after TASKGATE_RESULT_TTL_SECONDS."
    return Problem(405, "method_not_allowed", detail, headers=[(b"allow", allowed.encode())])


def create_app(settings: Settings) -> Application:
    """The application for one database. It connects when it starts; raises ValueError without DATABASE_URL."""
    _ = settings.database  # fail here, not at the start
    app = Application(
        title="taskgate",
        version=__version__,
        description="Post a task, have its id at once, read the result later.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        exception_handlers={
            Problem: _problem,
            RequestValidationError: _invalid_parameters,
            HTTPException: _http_exception,
            Exception: _internal_error,
        },
    )
    app.state.settings = settings
    for module in (actions, media, info, health, docs):
        app.include_router(module.router)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    assert isinstance(app, Application)
    context = app.context = app.state.context = make_context(app.state.settings)
    context.pool = await context.pool
    loop = asyncio.get_running_loop()
    context.background = [
        loop.create_task(upkeep(context.calls, context.stop, state=context.state, collect=context.collect_media)),
        loop.create_task(watch_schema(context)),
    ]
    context.waiter.start()
    try:
        yield
    finally:
        context.stop.set()
        await context.waiter.stop()
        for task in context.background:
            task.cancel()
        await asyncio.gather(*context.background, return_exceptions=True)
        try:
            await asyncio.wait_for(context.pool.close(), 5)
        except TimeoutError:
            context.pool.terminate()


async def _internal_error(request: Request, _error: Exception) -> Response:
    return await _problem(request, INTERNAL_ERROR)  # the exception goes on to Application, which logs it


async def _problem(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    headers = {name.decode(): value.decode() for name, value in problem.response_headers}
    return Response(problem.body, problem.status, headers)


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        (f"?{each['loc'][1]}" if each["loc"][0] == "query" else pointer(each["loc"]), str(each["msg"]))
        for each in error.errors()
    ]
    detail = "; ".join(f"{place}: {why}" for place, why in errors)
    return await _problem(request, Problem(422, "invalid_parameter", detail, errors=errors))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    if error.status_code == 405:
        return await _problem(request, not_allowed(request.method, (error.headers or {}).get("Allow", "")))
    if error.status_code == 404:
        return await _problem(request, Problem(404, "not_found", "There is nothing at this path: /docs lists what is."))
    return await _problem(request, Problem(error.status_code, "http_error", str(error.detail), headers=headers))
