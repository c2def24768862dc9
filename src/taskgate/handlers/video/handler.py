"""The `veo` handler: submit once, save the operation, follow it however often workers change, copy the videos."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from taskgate.handlers.media import Downloader
from taskgate.handlers.outcomes import Answer, Rules, retry_after
from taskgate.handlers.paid import ambiguous
from taskgate.handlers.video import inputs, store, verdicts
from taskgate.handlers.video.accounts import Account, account
from taskgate.handlers.video.http import NoAnswer, ProviderHttp
from taskgate.handlers.video.job import MISSING_SINCE, Job
from taskgate.handlers.video.request import VeoRequest
from taskgate.handlers.video.route import route, unsupported
from taskgate.handlers.video.submit import LEFT_SECONDS, Submission, cancel
from taskgate.handlers.video.tokens import Tokens
from taskgate.handlers.video.wire import Broken, Finished, Pending, State
from taskgate.settings import Settings
from taskgate.task import Handler, PermanentError, Snooze, Task, TaskError

MAX_POLL_PAUSE = 60.0
MAX_RETRY_AFTER = 300.0
ACCOUNT_PAUSE = 10.0
MEDIA = frozenset({"image", "last_frame", "reference_images", "video"})
LOOKS_WITHOUT_VIDEO = 3
"""Interactions are known to be `completed` a moment before their video is there."""


def veo_handler(settings: Settings) -> Handler:
    """The handler for task type `veo`. Raises ValueError for a TASKGATE_MEDIA_ALLOW that cannot be read."""
    provider = VideoProvider(settings)

    async def veo(task: Task[dict[str, Any]]) -> dict[str, Any]:
        """Make a video from a prompt, images or another video; it is paid for once, whatever happens to workers."""
        return await provider.run(task)

    return Handler("veo", veo, VeoRequest, settings.veo_timeout_seconds)


class VideoProvider:
    """Video providers, as the settings and upstreams describe them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._retry = settings.ambiguous_submit == "retry"
        self._tokens: dict[str, Tokens] = {}
        self._http: ProviderHttp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, task: Task[dict[str, Any]]) -> dict[str, Any]:
        """The result of a checked request. Raises what steers the task."""
        job = await self._resumed(task) or await self._submitted(task)
        if job.unwanted:
            raise await cancel(self._client(), task, job) or PermanentError("cancelled", code="cancelled")
        try:
            return await self._followed(task, job)
        except asyncio.CancelledError:
            if task.cancel_reason == "cancelled" and not job.over:
                left = await cancel(self._client(), task, job)
                if left is not None:
                    raise left from None
            raise

    # before the operation

    async def _resumed(self, task: Task[dict[str, Any]]) -> Job | None:
        """The operation that an earlier attempt paid for, None when there is nothing to resume."""
        paid = task.paid
        if paid is None:
            return None
        operation = paid.operation if isinstance(paid.operation, dict) else {}
        if not operation and not self._retry:
            raise ambiguous("an earlier attempt was stopped in the send", paid.account, retry=False)
        if not operation or "closed" in operation:
            return None
        try:
            same = self._account(str(operation.get("api")), task)
        except PermanentError:
            same = None
        if same is None or same.identity() != paid.account:
            raise await self._not_here(task, paid.account)
        if isinstance(task.checkpoint, dict) and MISSING_SINCE in task.checkpoint:
            await self._note(task, {})  # it is here: if it goes again, the wait for it begins anew
        return Job.of(same, operation)

    async def _not_here(self, task: Task[dict[str, Any]], paid_by: Any) -> TaskError:
        """Another worker may have the account of the operation; after a while somebody has to be told."""
        checkpoint = task.checkpoint if isinstance(task.checkpoint, dict) else {}
        since = checkpoint.get(MISSING_SINCE)
        if not isinstance(since, int | float):
            since = time.time()
            await self._note(task, {MISSING_SINCE: since})
        shown = paid_by if isinstance(paid_by, dict) else {}
        words = (
            f"the video was submitted on upstream {shown.get('upstream')!r} ({shown.get('api')}, "
            f"{shown.get('endpoint')}, project {shown.get('project') or 'none'}, key {shown.get('key') or 'none'}), "
        )
        if time.time() - since < self._settings.account_wait_seconds:
            return Snooze(words + "which this worker does not have", after=ACCOUNT_PAUSE, code="account_not_here")
        return PermanentError(
            words + "which no worker has configured: configure it again and retry the task",
            code="account_not_configured",
            info={"account": paid_by},
        )

    async def _note(self, task: Task[dict[str, Any]], checkpoint: dict[str, Any]) -> None:
        """Saves it. Who is cancelled meanwhile gives the task back: the next worker finds the operation unwanted."""
        try:
            await task.save_checkpoint(checkpoint)
        except asyncio.CancelledError:
            if task.cancel_reason == "cancelled":
                raise Snooze("cancelled before it was followed", after=LEFT_SECONDS, code="released") from None
            raise

    def _account(self, api: str, task: Task[dict[str, Any]]) -> Account:
        return account(api, task.upstream, self._settings, self._token_source)

    def _token_source(self, file: str) -> Tokens:
        found = self._tokens.get(file)
        if found is None:
            found = self._tokens[file] = Tokens(file)
        return found

    async def _submitted(self, task: Task[dict[str, Any]]) -> Job:
        retries = 0
        if task.paid is not None and isinstance(task.paid.operation, dict):  # one that is over
            retries = int(task.paid.operation.get("audio_retries", 0))
        to = route(task.request, task.upstream, self._settings)
        if wrong := unsupported(task.request, to):
            info = {"errors": [{"pointer": pointer, "detail": detail} for pointer, detail in wrong]}
            raise PermanentError(wrong[0][1], code="unsupported_field", info=info)
        if not to.model:
            words = f"no model is named, and the API {to.api} has none that everybody has: set TASKGATE_VEO_MODEL"
            raise PermanentError(words, code="no_model")
        chosen = self._account(to.api, task)
        settings = self._settings
        own = (chosen.endpoint,)
        images = Downloader(
            settings.media_allow,
            max_bytes=settings.media_max_bytes,
            max_pixels=settings.media_max_pixels,
            own=own,
        )
        videos = Downloader(settings.media_allow, max_bytes=settings.media_max_video_bytes, own=own)
        call = chosen.wire.submission(await inputs.load(task.request, chosen, images, videos), to.model)
        rules, seconds = self._rules(chosen), settings.veo_submit_seconds
        return await Submission(self._client(), task, chosen, to, call, rules, seconds, self._retry, retries).send()

    # the operation

    async def _followed(self, task: Task[dict[str, Any]], job: Job) -> dict[str, Any]:
        if not self._settings.veo_audio_retries:  # nothing is sent again: hours with megabytes in hand are too long
            task.request = {name: value for name, value in task.request.items() if name not in MEDIA}
        while True:
            if not job.resumed:
                await self._show(task, job, stage="submitted")
            state = await self._over(task, job)
            job.over = True
            rules = self._rules(job.account)
            if isinstance(state, Broken):
                error = verdicts.broken(state, rules)
                await task.save_operation(job.operation("failed"))
                raise error
            if state.videos:
                return await self._stored(task, job, state)
            again = verdicts.by_audio_alone(state) and job.audio_retries < self._settings.veo_audio_retries
            if again:
                job.audio_retries += 1
            await task.save_operation(job.operation("filtered"))
            if not again:
                raise verdicts.filtered(state, rules)
            fresh = await self._submitted(task)
            job.account, job.name, job.model, job.submitted = fresh.account, fresh.name, fresh.model, fresh.submitted
            job.resumed = job.over = False

    async def _over(self, task: Task[dict[str, Any]], job: Job) -> Finished | Broken:
        """Looks until the operation is over. A look that fails is no failure of the task: its time limit ends this."""
        failed, empty = 0, 0
        # one that another worker followed may be over already
        pause = random.uniform(0.0, min(2.0, self._settings.veo_poll_seconds)) if job.resumed else self._pause(None)
        while True:
            await asyncio.sleep(pause)
            state, answer, trouble = await self._look(job)
            if trouble is not None:
                failed += 1
                asked = retry_after(answer, MAX_RETRY_AFTER) if answer is not None else None
                most = max(MAX_POLL_PAUSE, self._settings.veo_poll_seconds)
                pause = asked or min(most, self._pause(None) * 2.0 ** min(failed, 10))
                await self._show(task, job, stage="polling", polls_failed=trouble)
                continue
            failed = 0
            if isinstance(state, Finished) and not state.videos and job.account.api == "interactions":
                empty += 1
                if empty < LOOKS_WITHOUT_VIDEO and not state.filtered_reasons:
                    pause = self._pause(answer)
                    continue
            if not isinstance(state, Pending) and state is not None:
                return state
            await self._show(task, job, stage="polling")
            pause = self._pause(answer)

    async def _look(self, job: Job) -> tuple[State | None, Answer | None, str | None]:
        """The operation's state with its answer, or what is wrong."""
        chosen = job.account
        try:
            answer = await self._client().look(chosen, chosen.wire.poll(job.name))
        except (NoAnswer, TaskError) as error:
            return None, None, str(error)[:200]
        if answer.status != 200:
            if answer.status == 401 and chosen.tokens is not None:
                chosen.tokens.forget()
            return None, answer, f"the provider answered {answer.status}"
        try:
            return chosen.wire.state(verdicts.parsed(answer)), answer, None
        except ValueError as error:
            return None, answer, f"the provider's answer cannot be read: {str(error)[:150]}"

    def _pause(self, answer: Answer | None) -> float:
        """The provider's own cadence where it names one, else the setting's, with jitter so that looks spread."""
        asked = retry_after(answer, MAX_RETRY_AFTER) if answer is not None else None
        return asked or self._settings.veo_poll_seconds * random.uniform(0.9, 1.1)

    async def _stored(self, task: Task[dict[str, Any]], job: Job, state: Finished) -> dict[str, Any]:
        elapsed = time.time() - job.submitted
        await self._show(task, job, stage="downloading")
        settings, chosen = self._settings, job.account
        foreign = Downloader(settings.media_allow, max_bytes=settings.media_max_store_bytes, own=(chosen.endpoint,))
        videos = await store.store(task, chosen, self._client(), foreign, state.videos, settings.storage_base_url)
        seconds = task.request.get("duration_seconds")
        kept_back = {"count": state.filtered_count, "reasons": list(state.filtered_reasons)}
        return {
            "videos": videos,
            "model": job.model,
            "api": chosen.api,
            "operation": job.name,
            "seconds": None if seconds is None else seconds * len(videos),
            "elapsed_seconds": round(max(0.0, elapsed), 3),
            "filtered": kept_back if state.filtered_count or state.filtered_reasons else None,
            "usage": state.usage,
        }

    async def _show(self, task: Task[dict[str, Any]], job: Job, **progress: Any) -> None:
        """Only what is new: a write for every look would be two hundred a second."""
        shown = {**progress, "operation": job.name}
        if shown != job.shown:
            job.shown = shown
            await task.report_progress(shown)

    def _rules(self, chosen: Account) -> Rules:
        return Rules(self._settings.max_throttle_seconds, tuple(filter(None, [chosen.key])))

    def _client(self) -> ProviderHttp:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._http, self._loop = ProviderHttp(), loop
        return self._http
