"""What the cool routes ask FastAPI for."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar, cast

import asyncpg
from fastapi import Depends, Request, Response

from taskgate.api.auth import Caller, require_admin
from taskgate.api.context import Context
from taskgate.api.http import query
from taskgate.api.problems import database_unavailable, unavailable
from taskgate.api.views import encode
from taskgate.protocol.connect import DATABASE_ERRORS

T = TypeVar("T")


def get_context(request: Request) -> Context:
    return cast(Context, request.app.state.context)


def get_caller(request: Request) -> Caller:
    return get_context(request).auth.caller(request.scope, dict(request.scope["headers"]))


def get_admin(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
    require_admin(caller)
    return caller


def get_reader(request: Request) -> None:
    """For documentation: with keys everybody may read it, without keys the same are served as everywhere."""
    context = get_context(request)
    if not context.auth.has_keys:
        context.auth.caller(request.scope, dict(request.scope["headers"]))


def get_known_parameters(request: Request, _caller: Annotated[Caller, Depends(get_caller)]) -> None:
    """Refuses query parameters that the route does not have, once it is clear who asks."""
    query(request.scope, [field.alias for field in request.scope["route"].dependant.query_params])


TheContext = Annotated[Context, Depends(get_context)]
TheCaller = Annotated[Caller, Depends(get_caller)]
TheAdmin = Annotated[Caller, Depends(get_admin)]
KNOWN_PARAMETERS = Depends(get_known_parameters)


async def ask(context: Context, call: Awaitable[T]) -> T:
    """The call's answer; trouble with the database becomes a Problem."""
    try:
        answer = await call
    except DATABASE_ERRORS as error:
        context.state.lost(error)
        raise database_unavailable() from None
    except asyncpg.PostgresError as error:
        if context.schema_trouble is not None:
            raise unavailable("schema_mismatch", context.schema_trouble) from None
        raise unavailable("database_refused", f"The database gave up: {error}. Try again.") from None
    context.state.back()
    return answer


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type="application/json")
