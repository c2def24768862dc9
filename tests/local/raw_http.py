"""An HTTP client that says exactly what it is told and hides nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])


class Client:
    """A connection that says exactly what it is told and hides nothing."""

    def __init__(self, url: str) -> None:
        self.host, port = url.removeprefix("http://").split(":")
        self.port = int(port)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    def send(self, method: str, path: str, body: bytes = b"", headers: str = "") -> None:
        head = f"{method} {path} HTTP/1.1\r\nhost: fake\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        self.writer.write(head.encode() + body)

    async def receive(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {line.split(": ")[0]: line.split(": ", 1)[1] for line in head[1:] if line}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await self.reader.readuntil(b"\r\n")), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(head[0].split(" ")[1]), headers, body)

    async def call(self, method: str, path: str, body: bytes = b"", headers: str = "") -> Reply:
        self.send(method, path, body, headers)
        return await self.receive()


def chat_body(prompt: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": prompt}], **more}).encode()


async def chat(url: str, prompt: str, **more: Any) -> Reply:
    async with Client(url) as client:
        return await client.call("POST", "/v1/chat/completions", chat_body(prompt, **more))


async def control(url: str, method: str, path: str, value: Any = None) -> Any:
    async with Client(url) as client:
        return (await client.call(method, path, b"" if value is None else json.dumps(value).encode())).json
