"""Liveness, readiness and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from taskgate.api.dependencies import TheAdmin, TheContext, ask, json_response
from taskgate.api.describe import answers, problems
from taskgate.api.problems import unavailable
from taskgate.api.schema_watch import check_schema
from taskgate.protocol.version import NEWEST_SCHEMA, OLDEST_SCHEMA

router = APIRouter()

_STATUS: dict[str, Any] = {
    "type": "object",
    "properties": {"status": {"const": "ok"}},
    "required": ["status"],
}
_READY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"const": "ok"},
        "schema_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "limit": {"type": "integer", "description": "tasks that may run at once, in the whole fleet"},
        "database": {
            "type": ["string", "null"],
            "description": "a hash of which cluster, database and schema this API works on; null: it could not know",
        },
    },
    "required": ["status", "schema_range", "limit", "database"],
}


@router.get(
    "/healthz",
    summary="The process lives",
    response_class=Response,
    responses={200: answers(_STATUS, "It lives")},
)
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    summary="The database answers, and its schema is one this program works with",
    response_class=Response,
    responses={200: answers(_READY, "Ready"), **problems(503)},
)
async def readyz(context: TheContext) -> Response:
    if not await check_schema(context):
        raise unavailable("database_unavailable", "The database does not answer.")
    if context.schema_trouble is not None:
        raise unavailable("schema_mismatch", context.schema_trouble)
    settings = await ask(context, context.calls.settings())
    return json_response(
        {
            "status": "ok",
            "schema_range": [OLDEST_SCHEMA, NEWEST_SCHEMA],
            "limit": settings["max_concurrent"],
            "database": await ask(context, context.calls.identity()),
        }
    )


@router.get(
    "/metrics",
    summary="Prometheus metrics (needs an admin's key where there are keys)",
    response_class=Response,
    responses={
        200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(401, 403),
    },
)
async def metrics(context: TheContext, _caller: TheAdmin) -> Response:
    text = await context.metrics.render(context.calls)
    return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})
