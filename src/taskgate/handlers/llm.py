"""The `llm` handler: one Chat Completions call with the official `openai` SDK.

The SDK's own retries are off: the one retry layer is the persisted one. It is imported with the first task, so that
an idle worker stays small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from taskgate.handlers.images import inline_images
from taskgate.handlers.llm_request import LlmRequest, to_chat
from taskgate.handlers.media import Downloader
from taskgate.handlers.outcomes import Answer, Failure, Rules, judge, judge_failure
from taskgate.handlers.paid import UNKNOWN_STATUSES, ambiguous, announce, to_the_end
from taskgate.handlers.redact import redact
from taskgate.handlers.upstream_keys import Endpoint, key_digest, key_of
from taskgate.settings import Settings
from taskgate.task import Handler, PermanentError, Task, TaskError, Upstream

if TYPE_CHECKING:
    import openai

CONNECT_SECONDS = 10.0
DEFAULT_BASE_URL = "https://api.openai.com/v1"
NO_KEY = "no-key-configured"
"""Sent to a provider of one's own that asks for none; the SDK refuses an empty key."""


def llm_handler(settings: Settings) -> Handler:
    """The handler for task type `llm`. Raises ValueError for a TASKGATE_MEDIA_ALLOW that cannot be read."""
    provider = ChatProvider(settings)

    async def llm(task: Task[dict[str, Any]]) -> dict[str, Any]:
        """Ask a chat model: a prompt with images, or messages, and any Chat Completions parameter."""
        return await provider.run(task)

    return Handler("llm", llm, LlmRequest)


class ChatProvider:
    """An OpenAI-shaped chat provider, as the settings describe it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        _ = self._images("")  # a TASKGATE_MEDIA_ALLOW that cannot be read is said at the start
        # a result above max_result_bytes is refused anyway; around it, the raw answer holds it once more
        self._max_bytes = 2 * settings.max_result_bytes + 1024**2
        self._clients: dict[Endpoint, openai.AsyncOpenAI] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def _images(self, base_url: str) -> Downloader:
        settings = self._settings
        return Downloader(
            settings.media_allow,
            max_bytes=settings.media_max_bytes,
            max_pixels=settings.media_max_pixels,
            own=(base_url,),
        )

    async def run(self, task: Task[dict[str, Any]]) -> dict[str, Any]:
        """The result of a checked request. Raises what steers the task: Retry, Throttled or PermanentError."""
        request = task.request
        endpoint = self._endpoint(task.upstream)
        client = self._connect(endpoint)
        model = request.get("model") or (task.upstream.model if task.upstream else "") or self._settings.llm_model
        if not model:
            raise PermanentError(
                "no model is named: put model into the task, or set TASKGATE_LLM_MODEL for the worker",
                code="no_model",
            )
        model = self._settings.model_aliases.get(model, model)
        messages, parameters = to_chat(request)
        if self._settings.images == "inline":
            images = self._images(endpoint.url)
            messages = await inline_images(messages, images, 4 * self._settings.media_max_bytes)
        rules = Rules(
            self._settings.max_throttle_seconds,
            tuple(filter(None, [endpoint.key])),
            self._settings.llm_raw_response,
        )
        if self._settings.llm_ambiguous == "fail":
            return await self._once(task, endpoint, rules, client, model, messages, parameters)
        answer = await self._call(client, model, messages, parameters, task.timeout, rules)
        outcome = judge(answer, rules)
        if isinstance(outcome, TaskError):
            raise outcome
        return outcome

    async def _once(
        self,
        task: Task[dict[str, Any]],
        endpoint: Endpoint,
        rules: Rules,
        client: openai.AsyncOpenAI,
        model: str,
        messages: list[Any],
        parameters: Mapping[str, Any],
    ) -> dict[str, Any]:
        """A chat that is never paid twice: announced before it is sent, and not repeated when its fate is unknown."""
        account = {
            "upstream": task.upstream.name if task.upstream else "",
            "api": "openai",
            "endpoint": endpoint.url,
            "project": "",
            "location": "",
            "key": key_digest(endpoint.key),
        }
        if task.paid is not None and task.paid.operation is None:
            raise ambiguous("an earlier attempt was stopped in the send", task.paid.account, retry=False)
        await announce(task, account)
        try:
            answer = await self._call(client, model, messages, parameters, task.timeout, rules)
        except TaskError as error:
            delivery = error.info.get("delivery") if isinstance(error.info, dict) else None
            if delivery == "unknown":
                raise ambiguous(str(error), account, retry=False) from error
            if error.code != "answer_too_large":  # that one was paid
                await to_the_end(task.withdraw())
            raise
        outcome = judge(answer, rules)
        if not isinstance(outcome, TaskError):
            return outcome
        taken = 200 <= answer.status < 300
        if taken and isinstance(outcome, PermanentError):
            raise outcome
        if taken or answer.status in UNKNOWN_STATUSES:
            raise ambiguous(str(outcome), account, retry=False)
        await to_the_end(task.withdraw())
        raise outcome

    async def _call(
        self,
        client: openai.AsyncOpenAI,
        model: str,
        messages: list[Any],
        parameters: Mapping[str, Any],
        timeout: float,
        rules: Rules,
    ) -> Answer:
        import httpx2
        import openai

        limits = httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout))
        try:
            # everything but model and messages goes by extra_body: the SDK neither knows nor changes it,
            # and a parameter that is called `timeout` does not become the SDK's own
            async with client.chat.completions.with_streaming_response.create(
                model=model, messages=messages, extra_body=dict(parameters), timeout=limits
            ) as response:
                body = await self._read(response.http_response)
                return Answer(response.status_code, _lower(response.headers), body)
        except openai.APIStatusError as error:
            return Answer(error.status_code, _lower(error.response.headers), error.response.text)
        except (openai.APIConnectionError, httpx2.RequestError) as error:
            cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
            raise self._failure(cause or error, timeout, rules) from error
        except (ValueError, RecursionError) as error:
            # not a word of the provider: JSON cannot hold the request (NaN, a lone surrogate, too deep)
            raise PermanentError(f"the request cannot be sent as JSON: {error}", code="invalid_request") from error

    async def _read(self, response: Any) -> str:
        content = bytearray()
        async for part in response.aiter_bytes():
            content += part
            if len(content) > self._max_bytes:
                raise PermanentError(
                    f"the provider's answer is larger than {self._max_bytes} bytes: ask for less, "
                    "or raise TASKGATE_MAX_RESULT_BYTES",
                    code="answer_too_large",
                )
        return content.decode("utf-8", "replace")

    def _failure(self, cause: BaseException, timeout: float, rules: Rules) -> TaskError:
        import httpx2

        kind: Failure = "disconnect"
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
            kind = "connect"
        elif isinstance(cause, httpx2.TimeoutException):
            kind = "timeout"
        elif isinstance(cause, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            words = redact(str(cause), rules.secrets)
            return _not_configured(f"the provider cannot be called: {words}; check OPENAI_BASE_URL and OPENAI_API_KEY")
        words = redact(str(cause), rules.secrets) or type(cause).__name__
        return judge_failure(kind, words, sent_for=timeout)

    def _endpoint(self, upstream: Upstream | None) -> Endpoint:
        """Raises PermanentError when there is no provider to call."""
        if upstream is None:
            key, url = self._settings.openai_api_key, self._settings.openai_base_url
            if not key and not url:
                raise _not_configured(
                    "no chat provider is configured: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own"
                )
            return Endpoint(url or DEFAULT_BASE_URL, key, "OPENAI_BASE_URL", "OPENAI_API_KEY")
        if upstream.api != "openai":
            raise _not_configured(f"the upstream {upstream.name!r} speaks {upstream.api}, which answers no chats")
        whose = f"of upstream {upstream.name!r}"
        return Endpoint(
            upstream.base_url or DEFAULT_BASE_URL, key_of(upstream), f"base_url {whose}", f"the key {whose}"
        )

    def _connect(self, endpoint: Endpoint) -> openai.AsyncOpenAI:
        """The client of this event loop. Raises PermanentError for an endpoint that cannot be called."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._clients, self._loop = {}, loop
        if endpoint in self._clients:
            return self._clients[endpoint]
        key, base_url = endpoint.key, endpoint.url
        host = _host(base_url)
        if host is None:
            raise _not_configured(f"{endpoint.url_name} must begin with http:// or https://, not {base_url[:100]!r}")
        if not key.isascii() or not key.isprintable():
            raise _not_configured(f"{endpoint.key_name} holds characters that no HTTP header can carry")

        import httpx2
        import openai

        try:
            client = openai.AsyncOpenAI(
                api_key=key or NO_KEY,
                base_url=base_url,
                max_retries=0,
                http_client=httpx2.AsyncClient(
                    # the slots bound the calls; proxies of the environment count, but not for this machine
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=self._settings.slots),
                    mounts={f"all://{host}": None} if _is_loopback(host) else None,
                ),
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise _not_configured(f"{endpoint.url_name} or a proxy setting cannot be used: {error}") from error
        self._clients[endpoint] = client
        return client


def _not_configured(words: str) -> PermanentError:
    return PermanentError(words, code="not_configured")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _host(url: str) -> str | None:
    """The host of an http or https URL as it stands in it, None for anything else."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in ("http", "https") else None
        _ = parts.port
    except ValueError:
        return None
    return f"[{host}]" if host and ":" in host else host


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "[::1]" or (host.startswith("127.") and host.count(".") == 3)
