"""The pieces of the OpenAPI document: what answers look like. Named here once, used by every route."""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.api.views import Limits, Page, Stats, Submitted, TaskView, TypeList, Verdict, WorkerList

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "RFC 9457. `code` is stable; `errors` name the places that are wrong.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
                "required": ["pointer", "detail"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "code", "errors"],
}

_WHAT = {
    400: "The body is no JSON",
    401: "The API key is missing or unknown",
    403: "Not for this caller",
    404: "Not there, or not the caller's",
    405: "Another method",
    408: "The body stopped coming",
    409: "Not in this state",
    413: "The body is too large",
    415: "The body's type cannot be read",
    422: "Something in the request is wrong",
    503: "The database does not answer, or too much is waiting: try again after Retry-After",
}

Responses = dict[int | str, dict[str, Any]]


def components() -> dict[str, Any]:
    structs = (TaskView, Submitted, Page, Verdict, Limits, Stats, WorkerList, TypeList)
    _, schemas = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    return {
        "schemas": {**schemas, "Problem": PROBLEM_SCHEMA},
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        },
    }


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def answers(schema: dict[str, Any], description: str, **more: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}, **more}


def problems(*statuses: int) -> Responses:
    content = {"application/problem+json": {"schema": ref("Problem")}}
    return {status: {"description": _WHAT[status], "content": content} for status in statuses}


def responses(success: Responses, *failures: int) -> Responses:
    """For a FastAPI route: what succeeds, and which problems every route or this one can have."""
    return {**success, **problems(401, 403, 422, 503, *failures)}
