"""The OpenAPI document: FastAPI's for the cool routes, ours for the hot ones, one path for every task type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import fastapi_offline
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse

from taskgate.api.dependencies import TheContext, get_reader, json_response
from taskgate.api.describe import answers, components, problems, ref
from taskgate.api.options import MAX_KEY_LENGTH, RESERVED
from taskgate.api.options import SCHEMA as OPTIONS
from taskgate.api.types import TaskType
from taskgate.protocol.connect import DATABASE_ERRORS

router = APIRouter(dependencies=[Depends(get_reader)])

_ASSETS = Path(fastapi_offline.__file__).parent / "static"  # only its copy of Swagger UI is used
_SCRIPT, _STYLE = "swagger-ui-bundle.js", "swagger-ui.css"

_WAIT = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "Hold the answer for so many seconds, or until the task is final.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 55},
}


_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key and body again answer with the same tasks, as long as the first one is kept; the same "
    "key with another body: 422 `idempotency_mismatch`. A key is its tenant's own.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[!-~]+$"},
}
_REPLAYED = {
    "Idempotent-Replayed": {
        "schema": {"const": "true"},
        "description": "Only there when a key stood for tasks that were there before",
    }
}


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, context: TheContext) -> Response:
    try:
        types = await context.types.all()
    except (*DATABASE_ERRORS, asyncpg.PostgresError):
        types = [await context.types.get(name) for name in ("llm", "veo")]
    return json_response(document(request.app, types))


@router.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    """Without a CDN: it must show where there is no internet too."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="taskgate",
        swagger_js_url=f"docs/{_SCRIPT}",
        swagger_css_url=f"docs/{_STYLE}",
        swagger_favicon_url="data:,",
    )


@router.get(f"/docs/{_SCRIPT}", include_in_schema=False)
async def docs_script() -> FileResponse:
    return FileResponse(_ASSETS / _SCRIPT)


@router.get(f"/docs/{_STYLE}", include_in_schema=False)
async def docs_style() -> FileResponse:
    return FileResponse(_ASSETS / _STYLE)


@router.get("/", include_in_schema=False)
async def root() -> RedirectResponse:
    return RedirectResponse("/docs")


def document(app: FastAPI, types: list[TaskType]) -> dict[str, Any]:
    base: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    paths = base["paths"]
    hot: dict[str, Any] = {"/tasks": {"post": _submit(types[[t.name for t in types].index("llm")], "submit_llm")}}
    for each in types:
        if each.name != "llm":
            hot[f"/tasks/{each.name}"] = {"post": _submit(each, f"submit_{each.name}")}
    hot["/tasks/{task_id}"] = {"get": _get()}
    for path, operations in hot.items():
        paths[path] = {**operations, **paths.get(path, {})}
    base["components"] = components()
    base["security"] = [{}, {"bearer": []}, {"key": []}]
    return base


def _with_options(schema: dict[str, Any] | None) -> dict[str, Any]:
    """The request's schema with the reserved key beside it."""
    options = {"type": "object", "properties": {RESERVED: OPTIONS}}
    if schema is None:
        return {"type": "object", "properties": {RESERVED: OPTIONS}, "additionalProperties": True}
    if schema.get("additionalProperties") is False or "$defs" in schema:
        # the reserved key is taken out before the schema is asked
        properties = {**schema.get("properties", {}), RESERVED: OPTIONS}
        return {key: value for key, value in schema.items() if key != "$defs"} | {"properties": properties}
    return {"allOf": [schema, options]}


def _submit(task_type: TaskType, operation: str) -> dict[str, Any]:
    one = _with_options(task_type.schema)
    return {
        "operationId": operation,
        "summary": f"Submit {task_type.name} tasks",
        "description": f"{task_type.description} One object, an array, or one object a line (all or nothing). "
        "202 means: committed to disk.".strip(),
        "parameters": [_WAIT, _IDEMPOTENCY_KEY],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"oneOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": 100000}]}
                },
                "application/x-ndjson": {"schema": {"type": "string"}},
            },
        },
        "responses": _texts(
            {
                200: answers(ref("TaskView"), "The task is final already (with wait)"),
                202: answers(
                    {"oneOf": [ref("Submitted"), {"type": "array", "items": ref("Submitted")}]},
                    "Accepted",
                    headers={
                        "Location": {"schema": {"type": "string"}, "description": "Where the task is (of one)"},
                        **_REPLAYED,
                    },
                ),
                **problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 503),
            }
        ),
    }


def _get() -> dict[str, Any]:
    include = {
        "name": "include",
        "in": "query",
        "required": False,
        "description": "`request`, `history` or both, with a comma.",
        "schema": {"type": "string", "pattern": "^((request|history)(,(request|history))?)?$"},
    }
    place = {"name": "task_id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": "get_task",
        "summary": "Read a task",
        "parameters": [place, _WAIT, include],
        "responses": _texts(
            {
                200: answers(
                    ref("TaskView"),
                    "The task",
                    headers={"Retry-After": {"schema": {"type": "integer"}, "description": "While it is not final"}},
                ),
                404: answers(ref("TaskView"), "Not there, or not the caller's: status `not_found`"),
                **problems(401, 403, 422, 503),
            }
        ),
    }


def _texts(responses: dict[int, Any] | dict[int | str, Any]) -> dict[str, Any]:
    return {str(status): response for status, response in responses.items()}
