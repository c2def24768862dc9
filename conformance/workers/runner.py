"""Runs one case against one worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import asyncpg

from conformance.workers.actions import run_step
from conformance.workers.cases import Case
from conformance.workers.expect import ended, logs_mismatch, provider_mismatch, rows_mismatch
from conformance.workers.polling import NotAsExpected, until
from conformance.workers.world import Databases, World, world

AT_ONCE = 7
"""Cases that run at the same time: they mostly wait."""
CASE_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case. `wrong` is None when it passed."""

    case: Case
    wrong: str | None
    seconds: float


async def run_case(case: Case, command: str, databases: Databases) -> Outcome:
    """Never raises for what the worker does; whatever it started is gone afterwards."""
    begun = time.monotonic()
    wrong: str | None = None
    words = ""
    try:
        async with asyncio.timeout(CASE_SECONDS), world(case, command, databases) as here:
            try:
                await _play(case, here)
            except BaseException:
                words = _last_words(here)
                raise
    except NotAsExpected as error:
        wrong = f"{error}\n{words}".rstrip()
    except TimeoutError:
        wrong = f"the case took more than {CASE_SECONDS:g} s\n{words}".rstrip()
    except (OSError, ValueError, KeyError, asyncpg.PostgresError) as error:
        wrong = f"{type(error).__name__}: {error}\n{words}".rstrip()
    return Outcome(case, wrong, time.monotonic() - begun)


async def run_cases(
    cases: Sequence[Case], command: str, databases: Databases, say: Callable[[Outcome], None]
) -> list[Outcome]:
    """All of them, several at once."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> Outcome:
        async with turns:
            outcome = await run_case(case, command, databases)
        say(outcome)
        return outcome

    return list(await asyncio.gather(*(one(case) for case in cases)))


async def _play(case: Case, here: World) -> None:
    here.provider.chooser.set_scripts({task.name: task.script for task in case.tasks if task.script})
    await here.store.configure(case.settings)
    if case.upstreams:
        await here.store.apply_upstreams(case.upstreams, here.provider.url)
    await here.store.enqueue([task for task in case.tasks if not task.later], here.image_url)
    for _ in range(case.workers):
        here.start_worker()
    for number, step in enumerate(case.steps, 1):
        try:
            await run_step(here, step)
        except NotAsExpected as error:
            raise NotAsExpected(f"step {number} ({next(iter(step))}): {error}") from error

    async def over() -> str | None:
        rows = await here.store.rows()
        wrong = ended(rows) if case.until is None else rows_mismatch(case.until, rows)
        if wrong is None:
            return None
        gone = [each.name for each in here.processes.values() if each.exit_code() is not None]
        return f"{wrong}{f' ({gone} ended)' if gone else ''}"

    await until(over)
    wrong = rows_mismatch(case.expect.get("rows", {}), await here.store.rows())
    if wrong is None:
        wrong = provider_mismatch(case.expect.get("provider", {}), here.provider, here.images.requests)
    if wrong is None and "logs" in case.expect:
        lines = [line for process in here.processes.values() for line in process.events()]
        wrong = logs_mismatch(case.expect["logs"], lines)
    if wrong is not None:
        raise NotAsExpected(wrong)


def _last_words(here: World) -> str:
    return "\n".join(process.last_words() for process in here.processes.values())
