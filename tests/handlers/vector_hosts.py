"""Plays the servers and the name service of a case of conformance/media/vectors.json."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "media" / "vectors.json").read_text("utf-8")
)


class VectorHosts:
    """The same routes on one port of several loopback addresses; notes where connections arrive."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._case = case
        self._servers: list[asyncio.Server] = []
        self.port = 0
        self.connected: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.asked: dict[str, int] = {}
        self.closed = asyncio.Event()

    async def start(self) -> None:
        """Skips where this machine's loopback is 127.0.0.1 alone."""
        first = await asyncio.start_server(self._serve, ADDRESSES[0], 0)
        self._servers.append(first)
        self.port = first.sockets[0].getsockname()[1]
        for address in ADDRESSES[1:]:
            try:
                self._servers.append(await asyncio.start_server(self._serve, address, self.port))
            except OSError as error:
                self.stop()
                pytest.skip(f"NOT TESTED: this machine cannot listen on {address} ({error.strerror})")

    def stop(self) -> None:
        for server in self._servers:
            server.close()

    def filled(self, text: str) -> str:
        return text.replace("${port}", str(self.port))

    async def resolve(self, host: str) -> list[str]:
        """The case's own name service; other names as the system has them."""
        n = self.asked[host] = self.asked.get(host, 0) + 1
        answers: list[list[str]] | None = self._case.get("hosts", {}).get(host)
        if answers is None:
            from taskgate.handlers.media import resolve_host

            return await resolve_host(host)
        return answers[min(n, len(answers)) - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.connected.append(writer.get_extra_info("sockname")[0])
            request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            self.requests.append({name.lower(): value for name, _, value in (line.partition(": ") for line in lines)})
            await self._answer(self._case["routes"][request.split(" ")[1].partition("?")[0]], writer)
        except ConnectionError:
            self.closed.set()
        finally:
            writer.close()

    async def _answer(self, route: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        body = base64.b64decode(route.get("base64", "")) + bytes(route.get("pad", 0))
        headers = {name: self.filled(value) for name, value in route.get("headers", {}).items()}
        if route.keys() & {"chunked", "endless"}:
            headers["transfer-encoding"] = "chunked"
        elif "content-length" not in headers:
            headers["content-length"] = "5000" if "drip" in route else str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {route.get('status', 200)} Said so\r\n{head}connection: close\r\n\r\n".encode())
        if "transfer-encoding" in headers:
            writer.write(b"%x\r\n%s\r\n" % (len(body), body))
            while "endless" in route:
                writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(body)
        while "drip" in route:  # faster than any read timeout
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(b"x")
        await writer.drain()
