"""A submission, sent once between two notes in the database; and the end of an operation that nobody wants any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

from taskgate.handlers.outcomes import Answer, Rules
from taskgate.handlers.paid import ambiguous, announce
from taskgate.handlers.video import verdicts
from taskgate.handlers.video.accounts import Account
from taskgate.handlers.video.http import NoAnswer, ProviderHttp
from taskgate.handlers.video.job import Job
from taskgate.handlers.video.route import Route
from taskgate.handlers.video.wire import HttpCall
from taskgate.task import EndedCancelled, Snooze, Task

LAST_WORDS = 4.0
"""An answer that has begun when its task is cancelled is read for so long: it may name what has to be cancelled."""
CANCEL_SECONDS = 4.0
"""The provider is asked to cancel an operation for so long, again and again with growing pauses."""
CANCEL_PAUSE = 0.25
LEFT_SECONDS = 5.0
"""What it did not cancel in that time is tried again so much later, by whoever has the task then."""
PASSING_STATUSES = frozenset({401, 403, 408, 425, 429})
"""Beside 5xx without 501: the provider may yet cancel it."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Nothing here may lose the operation's name."""

    http: ProviderHttp
    task: Task[Any]
    account: Account
    to: Route
    call: HttpCall
    rules: Rules
    seconds: float
    """For the whole answer."""
    retry: bool
    """Whether one of unknown fate is sent again."""
    audio_retries: int

    async def send(self) -> Job:
        """The operation that it began. Raises what steers the task.

        A cancellation closes the connection, unless the provider has begun to answer: then what it took is saved, and
        cancelled there. Other reasons to stop wait for the answer as long as this process is let.
        """
        headers = await self.account.headers()  # the token first: getting one is no part of the send
        await announce(self.task, self.account.identity(), retry=self.retry)
        answering = asyncio.Event()
        asking = asyncio.ensure_future(
            self.http.submit(self.account, self.call, headers, self.seconds, answering=answering)
        )
        sending = asyncio.ensure_future(self._taken(asking))
        stopped = False
        while not sending.done():
            try:
                await asyncio.wait([sending])
            except asyncio.CancelledError:
                stopped = True
                if self.task.cancel_reason == "cancelled":
                    if answering.is_set():
                        asyncio.get_running_loop().call_later(LAST_WORDS, asking.cancel)
                    else:
                        asking.cancel()
        if not stopped:
            return sending.result()
        # whatever else it raised, the reason to stop goes before
        if not sending.cancelled() and sending.exception() is None and self.task.cancel_reason == "cancelled":
            left = await cancel(self.http, self.task, sending.result())
            if left is not None:
                raise left
        raise asyncio.CancelledError

    async def _taken(self, asking: asyncio.Future[Answer]) -> Job:
        task, chosen, identity = self.task, self.account, self.account.identity()
        try:
            answer = await asking
        except NoAnswer as error:
            if error.delivery == "none":
                await task.withdraw()
                raise verdicts.not_delivered(error.words) from None
            raise ambiguous(error.words, identity, retry=self.retry) from None
        if verdicts.is_definite(answer):
            await task.withdraw()
            if answer.status == 401 and chosen.tokens is not None:
                chosen.tokens.forget()
            raise verdicts.refused(answer, self.to.model, self.to.api, self.rules)
        try:
            name = chosen.wire.operation(verdicts.parsed(answer)) if 200 <= answer.status < 300 else None
        except ValueError:
            name = None
        if name is None:
            why = f"the provider answered {answer.status}, and no operation"
            raise ambiguous(why, identity, retry=self.retry)
        job = Job(chosen, name, self.to.model, time.time(), self.audio_retries)
        try:
            await task.save_operation(job.operation())
        except EndedCancelled:
            await cancel(self.http, task, job)
            raise
        return job


async def cancel(http: ProviderHttp, task: Task[Any], job: Job) -> Snooze | None:
    """Cancel an operation at the provider, whatever stops come meanwhile.

    The answer, if there is one, gives the task back: it could not be done now, and the next worker tries again. An
    operation that the provider does not want to cancel stays open: who retries the task follows it, and does not pay
    again.
    """
    doing = asyncio.ensure_future(_cancel(http, task, job))
    while not doing.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([doing])
    return doing.result()


async def _cancel(http: ProviderHttp, task: Task[Any], job: Job) -> Snooze | None:
    why, pause = f"no answer in {CANCEL_SECONDS:g} s", CANCEL_PAUSE
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            while (wrong := await _refusal(http, job)) is not None:
                why = wrong
                await asyncio.sleep(pause)
                pause *= 2
    except TimeoutError:
        words = f"the operation {job.name} could not be cancelled at the provider: {why}"
        return Snooze(words, after=LEFT_SECONDS, code="released")
    except _WillNot:
        return None
    with contextlib.suppress(Exception):
        await task.save_operation(job.operation("cancelled"))
    return None


class _WillNot(Exception):
    """The provider has no such operation any more, or cancels none."""


async def _refusal(http: ProviderHttp, job: Job) -> str | None:
    """Why an operation is not cancelled yet, None once it is. Raises _WillNot."""
    try:
        answer = await http.look(job.account, job.account.wire.cancel(job.name))
    except Exception as error:  # of the network, of a token, …
        return str(error)[:200]
    if 200 <= answer.status < 300:
        return None
    if answer.status == 401 and job.account.tokens is not None:
        job.account.tokens.forget()
    if answer.status in PASSING_STATUSES or (answer.status >= 500 and answer.status != 501):
        return f"the provider answered {answer.status}"
    raise _WillNot
