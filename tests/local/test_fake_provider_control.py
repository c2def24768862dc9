"""Steering and watching the fake provider, inside this process and as one of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from taskgate.local.fake_provider import BadBehaviour, FakeProvider, FakeProviderOptions, from_text
from taskgate.local.fake_provider.__main__ import main
from tests.local.raw_http import Client, chat, chat_body, control
from tests.waiting import happens


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as fake:
        yield fake


@pytest.fixture
def started() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "taskgate.local.fake_provider", "--port", "0", "--latency", "0.05"]
    process = subprocess.Popen(
        [*command, "--fault", "503 times=1"], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("fake provider listening on http://127.0.0.1:")
        yield process, line.split(" ")[-1].strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


async def test_as_a_process(started: tuple[subprocess.Popen[str], str]) -> None:
    process, url = started
    assert (await chat(url, "first")).status == 503
    begun = time.monotonic()
    assert (await chat(url, "second")).text == "Fake answer to: second"
    assert time.monotonic() - begun >= 0.045  # timers of event loops count in milliseconds
    stats = await control(url, "GET", "/stats")
    assert stats == {
        "requests": 2,
        "in_flight": 0,
        "max_in_flight": 1,
        "closed_by_client": 0,
        "outcomes": {"503": 1, "ok": 1},
    }
    # the process runs on uvloop where there is one: a broken-off answer must look broken there too
    with pytest.raises(asyncio.IncompleteReadError):
        await chat(url, "[[fault:disconnect]]")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 30) == 0


def test_bad_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--fault", "nonsense"])
    assert "no fault is called 'nonsense'" in capsys.readouterr().err


async def test_a_taken_port_is_said(provider: FakeProvider) -> None:
    port = provider.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "taskgate.local.fake_provider", "--port", port]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors.decode()


async def test_scripts(provider: FakeProvider) -> None:
    script = [{"status": 429, "headers": {"Retry-After": "1"}}, {"fault": "500"}, {"ok": "text"}, "hang times=1"]
    left = await control(provider.url, "PUT", "/scripts", {"KEY": script, "OTHER": [{"ok": "other", "times": 2}]})
    assert left == {"KEY": {"left": 4}, "OTHER": {"left": 1}}
    first = await chat(provider.url, "a KEY")
    assert (first.status, first.headers["retry-after"]) == (429, "1")
    assert (await chat(provider.url, "nothing of that")).status == 200
    assert (await chat(provider.url, "KEY b")).status == 500
    assert (await chat(provider.url, "KEY")).text == "text"
    assert [(await chat(provider.url, "OTHER")).text for _ in range(3)] == ["other", "other", "Fake answer to: OTHER"]
    assert [entry["key"] for entry in provider.journal.log(contains="KEY")] == ["KEY", "KEY", "KEY"]
    assert await control(provider.url, "DELETE", "/scripts") == {}
    assert (await chat(provider.url, "KEY")).text == "Fake answer to: KEY"


async def test_faults_while_it_runs(provider: FakeProvider) -> None:
    spec = {"latency": 0.01, "seed": 7, "faults": [{"fault": "400", "times": 1}, {"fault": "500", "share": 0.5}]}
    shown = await control(provider.url, "PUT", "/faults", spec)
    assert shown["latency"] == 0.01
    statuses = [(await chat(provider.url, "x")).status for _ in range(41)]
    assert statuses[0] == 400
    assert 5 < statuses.count(500) < 35
    assert statuses.count(200) == 40 - statuses.count(500)
    await control(provider.url, "PUT", "/faults", {"faults": [], "latency": 0, "limit": 1})
    async with Client(provider.url) as client:
        client.send("POST", "/v1/chat/completions", chat_body("[[fault:hang]]"))
        await happens(lambda: provider.journal.in_flight == 1)
        assert (await chat(provider.url, "one too many")).status == 429


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("/faults", [], "send an object"),
        ("/faults", {"latency": -1}, "latency is a number from 0"),
        ("/faults", {"faults": [{"fault": "429", "retry": 1}]}, "a behaviour has no 'retry': it has"),
        ("/scripts", {"K": {"ok": "a"}}, "send an object of lists"),
        ("/scripts", {"K": [{"status": 42}]}, "from 200 to 599"),
        ("/scripts", {"K": [{"ok": 1}]}, "ok is a string"),
    ],
)
async def test_a_wrong_setting_changes_nothing(provider: FakeProvider, path: str, value: Any, words: str) -> None:
    async with Client(provider.url) as client:
        reply = await client.call("PUT", path, json.dumps(value).encode())
    assert reply.status == 400
    assert words in reply.json["error"]["message"]
    assert (provider.chooser.faults, provider.chooser.scripts, provider.chooser.latency) == ([], {}, 0)


async def test_log_and_bodies(provider: FakeProvider) -> None:
    odd = b'{ "messages" : [{"content":"KEY \xc3\xa9","role":"user"}],"z":1.50,"a":2 }'
    async with Client(provider.url) as client:
        key = "Authorization: Bearer secret\r\nX-Trace: t1\r\n"
        await client.call("POST", "/v1/chat/completions", odd, key)
        await client.call("POST", "/v1/chat/completions", b"{broken")
        entries = (await client.call("GET", "/log")).json
        assert (await client.call("GET", "/log/1/body")).body == odd
        assert (await client.call("GET", "/log/9/body")).status == 404
        assert len((await client.call("GET", "/log?contains=KEY")).json) == 1
        assert len((await client.call("GET", "/log?limit=1")).json) == 1
    assert entries[0]["prompt"] == "KEY é"
    assert entries[0]["headers"]["x-trace"] == "t1"
    assert "secret" not in json.dumps(entries)
    assert entries[0]["authorization"] not in (None, entries[1]["authorization"])
    assert (entries[1]["outcome"], entries[1]["status"]) == ("bad_request", 400)


async def test_the_log_is_bounded() -> None:
    async with FakeProvider(FakeProviderOptions(log_size=3)) as provider:
        for n in range(5):
            await chat(provider.url, f"p{n}")
        assert [entry["n"] for entry in provider.journal.log()] == [3, 4, 5]
        assert provider.journal.body(1) is None
        assert provider.journal.requests == 5
        assert await control(provider.url, "POST", "/stats/reset") == {
            "requests": 0,
            "in_flight": 0,
            "max_in_flight": 0,
            "closed_by_client": 0,
            "outcomes": {},
        }
        assert provider.journal.log() == []


def test_from_text() -> None:
    rule = from_text("429 retry_after=2.5 times=3 share=0.5")
    assert (rule.behaviour.status, rule.behaviour.retry_after, rule.times, rule.share) == (429, 2.5, 3, 0.5)
    for text in ("", "429 x", "700", "429 retry_after=soon", "429 retry_after=-1", "disconnect when=later"):
        with pytest.raises(BadBehaviour):
            from_text(text)
