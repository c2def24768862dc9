"""What the fleet looks like: limits, statistics, workers, task types."""

from __future__ import annotations

from fastapi import APIRouter, Response

from taskgate.api.dependencies import KNOWN_PARAMETERS, TheAdmin, TheCaller, TheContext, ask, json_response
from taskgate.api.describe import answers, ref, responses
from taskgate.api.views import (
    Cooldown,
    GroupLimit,
    Limits,
    Stats,
    TypeCount,
    TypeList,
    TypeView,
    WorkerList,
    WorkerView,
)

router = APIRouter(dependencies=[KNOWN_PARAMETERS])


@router.get(
    "/limits",
    summary="The limits of the whole fleet",
    response_class=Response,
    responses=responses({200: answers(ref("Limits"), "The limits")}),
)
async def limits(context: TheContext, caller: TheCaller) -> Response:
    row = await ask(context, context.calls.settings())
    stats = await ask(context, context.calls.stats())
    groups = await ask(context, context.calls.limits())
    cooling = await ask(context, context.calls.cooldowns())
    return json_response(
        Limits(
            max_concurrent=row["max_concurrent"],
            running=stats["running"],
            max_attempts=row["max_attempts"],
            max_throttle_seconds=row["max_throttle_seconds"],
            result_ttl_seconds=row["result_ttl_seconds"],
            ageing_seconds=row["ageing_seconds"],
            groups=[
                GroupLimit(**{name: each[name] for name in GroupLimit.__struct_fields__})
                for each in groups
                if caller.admin or each["scope"] != "tenant" or each["name"] == caller.tenant
            ],
            cooldowns=[Cooldown(**{name: each[name] for name in Cooldown.__struct_fields__}) for each in cooling],
        )
    )


@router.get(
    "/stats",
    summary="The queue now",
    response_class=Response,
    responses=responses({200: answers(ref("Stats"), "The numbers")}),
)
async def stats(context: TheContext, caller: TheCaller) -> Response:
    row = await ask(context, context.calls.stats(caller.sees))
    by_type = await ask(context, context.calls.stats_by_type(caller.sees))
    return json_response(
        Stats(
            limit=row["limit"],
            running=row["running"],
            pending=row["pending"],
            delayed=row["delayed"],
            oldest_pending_seconds=row["oldest_pending_seconds"],
            workers=row["workers"],
            slots=row["slots"],
            by_type=[TypeCount(each["task_type"], each["status"], each["tasks"]) for each in by_type],
        )
    )


@router.get(
    "/workers",
    summary="The workers (needs an admin's key where there are keys)",
    response_class=Response,
    responses=responses({200: answers(ref("WorkerList"), "The workers")}),
)
async def workers(context: TheContext, _caller: TheAdmin) -> Response:
    rows = await ask(context, context.calls.workers())
    names = WorkerView.__struct_fields__
    return json_response(WorkerList([WorkerView(**{name: row[name] for name in names}) for row in rows]))


@router.get(
    "/types",
    summary="The registered task types",
    response_class=Response,
    responses=responses({200: answers(ref("TypeList"), "The types")}),
)
async def types(context: TheContext, _caller: TheCaller) -> Response:
    known = await ask(context, context.types.all())
    return json_response(
        TypeList([TypeView(t.name, t.description, t.schema, t.registered_at, t.updated_at) for t in known])
    )
