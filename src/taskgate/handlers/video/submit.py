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
from taskgate.task import Task

LAST_WORDS = 4.0
"""An answer that has begun when its task is cancelled is read for so long: it may name what has to be cancelled."""
CANCEL_SECONDS = 2.0


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
            await cancel(self.http, self.task, sending.result())
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
        await task.save_operation(job.operation())
        return job


async def cancel(http: ProviderHttp, task: Task[Any], job: Job) -> None:
    """Cancel an operation at the provider, as far as that is possible in a moment. Raises nothing but a stop.

    Without the provider's word it stays open: who retries the task follows it, and does not pay again.
    """
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CANCEL_SECONDS):
            answer = await http.look(job.account, job.account.wire.cancel(job.name))
        if 200 <= answer.status < 300:
            await task.save_operation(job.operation("cancelled"))
