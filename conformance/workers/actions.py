"""The steps of a case: what happens to the worker, and what to wait for before the next step.

A step is an object; its first key names the action, the others are its details. See conformance/README.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from conformance.workers.citizen import SQL_ONLY, Citizen
from conformance.workers.expect import calls_of, rows_mismatch
from conformance.workers.polling import DEADLINE_SECONDS, NotAsExpected, until
from conformance.workers.store import Store
from conformance.workers.world import World

Action = Callable[[World, Any, dict[str, Any]], Awaitable[None]]


async def run_step(world: World, step: dict[str, Any]) -> None:
    """Raises NotAsExpected."""
    name, value = next(iter(step.items()))
    action = ACTIONS.get(name)
    if action is None:
        raise ValueError(f"no step is called {name!r}: there are {', '.join(ACTIONS)}")
    await action(world, value, step)


async def start(world: World, count: int, step: dict[str, Any]) -> None:
    command = SQL_ONLY if step.get("kind") == "sql-only" else None
    for _ in range(count):
        world.start_worker(step.get("settings"), command)


async def enqueue(world: World, names: list[str], _step: dict[str, Any]) -> None:
    await world.store.enqueue([task for task in world.case.tasks if task.name in names], world.image_url)


async def upstreams(world: World, rows: list[dict[str, Any]], _step: dict[str, Any]) -> None:
    await world.store.apply_upstreams(rows, world.provider.url)


async def send(world: World, name: str, step: dict[str, Any]) -> None:
    world.processes[step.get("to", "w1")].send(name)


async def wait(world: World, value: dict[str, Any], step: dict[str, Any]) -> None:
    """All that is named must hold at one time. A number of seconds in `within` is the deadline."""

    async def seen() -> str | None:
        journal = world.provider.journal
        for name, wanted in value.items():
            wrong: str | None
            match name:
                case "in_flight":
                    wrong = _number(f"{name} at the provider", journal.in_flight, wanted)
                case "calls":
                    wrong = _number("calls at the provider", journal.requests, wanted)
                case "polls":
                    wrong = _number("looks at operations", world.provider.video.counts["polls"], wanted)
                case "closed_by_client":
                    wrong = _number("calls closed by the worker", journal.closed_by_client, wanted)
                case "rows":
                    wrong = rows_mismatch(wanted, await world.store.rows())
                case "claims":
                    wrong = _number("calls of claim", await world.store.claim_calls(), wanted)
                case "draining" | "registered":
                    wrong = _number(f"workers {name}", await world.store.workers(draining=name == "draining"), wanted)
                case "connections":
                    wrong = _number("connections to the proxy", world.proxy.connections if world.proxy else 0, wanted)
                case "lost_replies":
                    wrong = _number(name, world.proxy.lost if world.proxy else 0, wanted)
                case "exited":
                    wrong = _exited(world, wanted)
                case _:
                    raise ValueError(f"cannot wait for {name!r}")
            if wrong is not None:
                return wrong
        return None

    await until(seen, step.get("within", DEADLINE_SECONDS))


def _number(what: str, found: int, wanted: int) -> str | None:
    """In flight is compared exactly where it must go back to 0; counts only ever grow."""
    good = found == 0 if wanted == 0 else found >= wanted
    return None if good else f"{found} {what} instead of {wanted}"


def _exited(world: World, codes: dict[str, int | list[int]]) -> str | None:
    for name, wanted in codes.items():
        code = world.processes[name].exit_code()
        if code is None:
            return f"{name} still runs"
        if code not in (wanted if isinstance(wanted, list) else [wanted]):
            raise NotAsExpected(f"{name} ended with exit code {code} instead of {wanted}")
    return None


async def check(world: World, value: dict[str, Any], _step: dict[str, Any]) -> None:
    """What must hold now."""
    wrong = rows_mismatch(value.get("rows", {}), await world.store.rows())
    if wrong is None and "held" in value:
        wrong = await world.store.still_held(value["held"])
    if wrong is None and "requests" in value and world.provider.journal.requests != value["requests"]:
        wrong = f"{world.provider.journal.requests} calls at the provider instead of {value['requests']}"
    if wrong is None and "closed_before_lease_end" in value:
        wrong = await _closed_in_time(world, value["closed_before_lease_end"])
    if wrong is not None:
        raise NotAsExpected(wrong)


async def _closed_in_time(world: World, name: str) -> str | None:
    """The provider's clock and the database's must be the same machine's, or in step."""
    row = (await world.store.rows())[name]
    call = calls_of(world.provider, name)[-1]
    if not call["closed_by_client"]:
        return f"the call of {name} was not closed by the worker"
    if row["status"] != "running" or row["locked_until"] is None:
        return f"{name} was taken back before this could be looked at"
    late = call["time_out"] - row["locked_until"]
    return None if late < 0 else f"the call of {name} was closed {late:.2f} s after its lease had ended"


async def cancel(world: World, name: str, step: dict[str, Any]) -> None:
    answer = await world.store.calls.cancel(name)
    if answer != step.get("answer", answer):
        raise NotAsExpected(f"cancel answered {answer!r} instead of {step['answer']!r}")


async def limit(world: World, number: int, _step: dict[str, Any]) -> None:
    await world.store.calls.set_limit(number)


async def network(world: World, what: str, _step: dict[str, Any]) -> None:
    assert world.proxy is not None, "the case needs proxy: true"
    if what == "cut":
        world.proxy.cut()
    else:
        world.proxy.heal()


async def lose_reply(world: World, call: str, _step: dict[str, Any]) -> None:
    assert world.proxy is not None, "the case needs proxy: true"
    # what shows that the call had an effect: a task's id, or that the write was done;
    # complete_and_claim only tells what it claimed
    names = [task.name for task in world.case.tasks]
    signs = {"claim": names, "complete": ["done", "empty", "unsure", *names]}
    world.proxy.lose_reply(call, signs.get(call, ["done"]))


async def restart_postgres(world: World, mode: Any, _step: dict[str, Any]) -> None:
    server = world.databases.server
    assert world.case.own_postgres, "the case needs own_postgres: true"
    assert server is not None
    await world.store.close()
    await asyncio.to_thread(server.restart, mode)
    world.store = await Store.open(world.url)


async def http(world: World, path: str, step: dict[str, Any]) -> None:
    """Until the worker's own port answers 200 with all those words in it."""

    async def answered() -> str | None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            text = (await reader.read()).decode()
            writer.close()
        except OSError as error:
            return f"{path}: {error}"
        missing = [words for words in ["HTTP/1.1 200", *step["has"]] if words not in text]
        return f"{path} does not have {missing}: {text}" if missing else None

    await until(answered)


async def forget(world: World, _what: str, _step: dict[str, Any]) -> None:
    """The provider forgets what it saw so far, but for the calls in flight."""
    world.provider.journal.reset()


async def schema_version(world: World, version: int, _step: dict[str, Any]) -> None:
    await world.store.set_schema_version(version)


async def recover(world: World, name: str, _step: dict[str, Any]) -> None:
    """Until the task is taken back from its worker; nothing is taken back before its lease has run out."""

    async def taken_back() -> str | None:
        return None if await world.store.recovered(name) else f"{name} is still running"

    await until(taken_back)


async def take(world: World, name: str, step: dict[str, Any]) -> None:
    """Another worker, by the functions or in SQL alone, takes the task."""
    if step.get("kind") == "sql-only":
        await asyncio.to_thread(_sql_only, world.url, name, step["result"])
        return

    async def taken() -> str | None:
        return None if await world.store.take(name) else f"{name} could not be claimed"

    await until(taken)


def _sql_only(url: str, name: str, result: Any) -> None:
    citizen = Citizen(url, 600)
    try:
        claimed = citizen.claim()
        if claimed is None or claimed[0] != name:
            raise NotAsExpected(f"the SQL-only worker was given {claimed!r} instead of {name!r}")
        if not citizen.complete(name, result):
            raise NotAsExpected(f"the result of the SQL-only worker for {name} was refused")
    finally:
        citizen.close()


async def finish(world: World, name: str, step: dict[str, Any]) -> None:
    verdict = await world.store.finish(name, step["result"])
    if verdict != "done":
        raise NotAsExpected(f"the holder's result for {name} was answered {verdict!r} instead of 'done'")


ACTIONS: dict[str, Action] = {
    "start": start,
    "enqueue": enqueue,
    "upstreams": upstreams,
    "signal": send,
    "wait": wait,
    "check": check,
    "cancel": cancel,
    "limit": limit,
    "network": network,
    "lose_reply": lose_reply,
    "restart_postgres": restart_postgres,
    "http": http,
    "forget": forget,
    "schema_version": schema_version,
    "recover": recover,
    "take": take,
    "finish": finish,
}
