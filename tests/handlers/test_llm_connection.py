"""The `llm` handler's connection: settings, time limits, cancellation, proxies, memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from taskgate.handlers.llm import llm_handler
from taskgate.local.fake_provider import FakeProvider, FakeProviderOptions
from taskgate.settings import Settings
from taskgate.testing import run
from tests.handlers.asking import ask
from tests.waiting import happens


async def test_keys(provider: FakeProvider) -> None:
    async with FakeProvider(FakeProviderOptions(api_key="the-right-key")) as strict:
        assert (await ask(strict, {"prompt": "a"}, openai_api_key="the-right-key")).status == "completed"
        outcome = await ask(strict, {"prompt": "a"}, openai_api_key="wrong")
        assert (outcome.status, outcome.error_code) == ("failed", "provider_auth")
        assert "Incorrect API key provided." in (outcome.error or "")
    # a server of one's own asks for none, the SDK wants one all the same
    assert (await ask(provider, {"prompt": "a"})).status == "completed"
    assert provider.journal.log()[0]["authorization"]


async def test_a_read_timeout(provider: FakeProvider) -> None:
    handler = llm_handler(Settings(openai_base_url=provider.url + "/v1", llm_model="m"))
    function = handler.function

    async def hurried(task: Any) -> Any:
        task.timeout = 0.2  # the handler's own limit, before the attempt's
        return await function(task)

    outcome = await run(hurried, {"prompt": "[[fault:hang]]"}, timeout=60)
    assert (outcome.status, outcome.error_code) == ("retry", "provider_timeout")
    assert "in 0.2 s" in (outcome.error or "")
    await happens(lambda: provider.journal.closed_by_client == 1)


async def test_connection_refused(provider: FakeProvider) -> None:
    url = provider.url
    await provider.stop()
    outcome = await ask(url, {"prompt": "a"})
    assert (outcome.status, outcome.error_code) == ("retry", "provider_unavailable")
    assert "cannot be reached" in (outcome.error or "")


@pytest.mark.parametrize("fault", ["hang", "slow_body seconds=60", "slow_headers seconds=60"])
async def test_cancelling_closes_the_connection_at_once(provider: FakeProvider, fault: str) -> None:
    attempt = asyncio.create_task(ask(provider, {"prompt": f"[[fault:{fault}]]"}, timeout=60))
    await happens(lambda: provider.journal.in_flight == 1)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await happens(lambda: provider.journal.in_flight == 0)
    assert provider.journal.log()[0]["closed_by_client"] is True


async def test_what_is_not_configured_is_said_with_a_remedy(provider: FakeProvider) -> None:
    outcome = await ask("", {"prompt": "a"})
    assert (outcome.status, outcome.error_code) == ("failed", "not_configured")
    assert "set OPENAI_API_KEY, or OPENAI_BASE_URL" in (outcome.error or "")
    outcome = await ask(provider, {"prompt": "a"}, llm_model="")
    assert (outcome.status, outcome.error_code) == ("failed", "no_model")
    assert "TASKGATE_LLM_MODEL" in (outcome.error or "")
    for url in ("localhost:8080/v1", "ftp://a/b", "http://", "http://a:b/v1"):
        outcome = await ask(url, {"prompt": "a"})
        assert (outcome.status, outcome.error_code) == ("failed", "not_configured"), url
        assert "OPENAI_BASE_URL" in (outcome.error or "")
    for key in ("line\nbreak", "schlüssel"):
        outcome = await ask(provider, {"prompt": "a"}, openai_api_key=key)
        assert (outcome.status, outcome.error_code) == ("failed", "not_configured")
        assert "OPENAI_API_KEY" in (outcome.error or "")
    assert provider.journal.requests == 0


async def test_proxies_of_the_environment(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode().strip())
        writer.write(b"HTTP/1.1 500 Seen\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    monkeypatch.setenv("HTTP_PROXY", address)
    monkeypatch.setenv("http_proxy", address)
    try:
        for host in ("127.0.0.1", "localhost"):
            url = provider.url.replace("127.0.0.1", host) + "/v1"
            assert (await ask(url, {"prompt": "a"})).status == "completed", host
        assert asked == []
        outcome = await ask("http://provider.invalid/v1", {"prompt": "a"})
        assert outcome.error_code == "provider_error"
        assert asked == ["POST http://provider.invalid/v1/chat/completions HTTP/1.1"]
        monkeypatch.setenv("NO_PROXY", "provider.invalid")
        monkeypatch.setenv("no_proxy", "provider.invalid")
        outcome = await ask("http://provider.invalid/v1", {"prompt": "a"})
        assert outcome.error_code == "provider_unavailable"
        assert len(asked) == 1
    finally:
        server.close()


async def test_calls_share_connections_and_all_slots_run_at_once(provider: FakeProvider) -> None:
    provider.chooser.latency = 0.2
    handler = llm_handler(Settings(openai_base_url=provider.url + "/v1", llm_model="m", slots=150))
    outcomes = await asyncio.gather(*(run(handler, {"prompt": f"q{n}"}) for n in range(150)))
    assert [outcome.result["text"] for outcome in outcomes] == [f"Fake answer to: q{n}" for n in range(150)]
    assert provider.journal.max_in_flight == 150


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_memory(provider: FakeProvider) -> None:
    """An idle worker has not loaded the SDK; twenty calls in flight stay far below a worker's 110 MiB."""
    script = textwrap.dedent(
        """
        import asyncio, sys, time
        from taskgate.handlers.llm import llm_handler
        from taskgate.settings import Settings
        from taskgate.testing import run

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096 // 1024**2

        async def main():
            handler = llm_handler(Settings())
            assert not {"openai", "httpx2"} & sys.modules.keys(), "the SDK is loaded before the first task"
            print(resident(), flush=True)
            calls = [asyncio.create_task(run(handler, {"prompt": f"[[fault:hang]] {n}"})) for n in range(20)]
            await asyncio.to_thread(sys.stdin.readline)
            print(resident(), flush=True)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)

        asyncio.run(main())
        """
    )
    environment = {"OPENAI_BASE_URL": provider.url + "/v1", "TASKGATE_LLM_MODEL": "m", "PATH": ""}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdin
    assert process.stdout
    try:
        idle = int(await process.stdout.readline())
        await happens(lambda: provider.journal.in_flight == 20, 60)
        process.stdin.write(b"\n")
        busy = int(await process.stdout.readline())
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert idle < 45
    assert busy < 90
