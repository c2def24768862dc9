"""Who is served without keys, and that a key is a key."""

from __future__ import annotations

import pytest

from taskgate.api.auth import EVERYBODY, Auth
from taskgate.api.problems import Problem
from taskgate.settings import Settings
from tests.api.api_process import ApiProcess

HOST = (b"host", b"127.0.0.1:8000")


def code(auth: Auth, client: str, *headers: tuple[bytes, bytes]) -> str:
    try:
        auth.caller({"type": "http", "client": (client, 1)}, dict(headers))
    except Problem as problem:
        return problem.code
    return "served"


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", [b"localhost", b"localhost:80", b"127.0.0.1:8000", b"[::1]:8000", b"x.localhost:1"])
def test_loopback_is_served(client: str, host: bytes) -> None:
    assert code(Auth(Settings()), client, (b"host", host)) == "served"


@pytest.mark.parametrize("client", ["10.0.0.1", "192.168.1.2", "::ffff:10.0.0.1", "fe80::1%eth0", "nonsense"])
def test_other_machines_are_not(client: str) -> None:
    assert code(Auth(Settings()), client, HOST) == "not_loopback"
    assert code(Auth(Settings(allow_anonymous=True)), client, (b"host", b"tasks.example")) == "served"


@pytest.mark.parametrize(
    "host", [b"evil.example", b"evil.example:8000", b"127.0.0.1.evil.example", b"", b"[::1", b"\xff"]
)
def test_a_rebound_name_is_not(host: bytes) -> None:
    assert code(Auth(Settings()), "127.0.0.1", (b"host", host)) == "foreign_host"


def test_a_page_from_elsewhere_is_not() -> None:
    auth = Auth(Settings())
    assert code(auth, "127.0.0.1", HOST, (b"origin", b"https://evil.example")) == "foreign_origin"
    assert code(auth, "127.0.0.1", HOST, (b"origin", b"null")) == "foreign_origin"
    assert code(auth, "127.0.0.1", HOST, (b"sec-fetch-site", b"cross-site")) == "foreign_origin"
    assert code(auth, "127.0.0.1", HOST, (b"origin", b"http://localhost:3000")) == "served"


def test_what_a_proxy_forwards_is_not() -> None:
    for header in (b"x-forwarded-for", b"forwarded", b"x-real-ip"):
        assert code(Auth(Settings()), "127.0.0.1", HOST, (header, b"127.0.0.1")) == "behind_proxy"


def test_keys() -> None:
    auth = Auth(Settings(api_keys_text="acme:one, ops:two:admin"))
    scope = {"type": "http", "client": ("10.0.0.1", 1)}
    acme = auth.caller(scope, {b"authorization": b"Bearer one"})
    assert (acme.tenant, acme.sees, acme.admin) == ("acme", "acme", False)
    assert auth.caller(scope, {b"x-api-key": b"one"}) == acme
    assert auth.caller(scope, {b"authorization": b"bearer  one"}) == acme
    ops = auth.caller(scope, {b"x-api-key": b"two"})
    assert (ops.tenant, ops.sees, ops.admin) == ("ops", None, True)
    for headers in ({}, {b"authorization": b"one"}, {b"authorization": b"Basic one"}, {b"x-api-key": b""}):
        with pytest.raises(Problem) as caught:
            auth.caller(scope, headers)
        assert (caught.value.status, caught.value.code) == (401, "unauthorized")


def test_without_keys_everybody_here_is_an_admin() -> None:
    scope = {"type": "http", "client": ("127.0.0.1", 1)}
    assert Auth(Settings()).caller(scope, dict([HOST])) == EVERYBODY


async def test_every_route_asks(database: str) -> None:
    """Not one route is forgotten: with keys each is 401 without one, but health and documentation."""
    with ApiProcess(database, TASKGATE_API_KEYS="acme:one") as api:
        async with api.client() as client:
            document = (await client.get("/openapi.json")).json()
            asked = 0
            for path, operations in document["paths"].items():
                for method in operations:
                    answer = await client.request(method, path.replace("{task_id}", "x"), json={"prompt": "x"})
                    if path in ("/healthz", "/readyz"):
                        assert answer.status_code == 200
                    else:
                        assert (path, method, answer.status_code) == (path, method, 401)
                        asked += 1
            for path in ("/tasks/x/events", "/tasks/x/media/y"):
                assert (await client.get(path)).status_code == 401
            assert asked >= 10


async def test_a_foreign_host_over_http(api: ApiProcess) -> None:
    async with api.client() as client:
        for method, path in (("POST", "/tasks"), ("GET", "/tasks/x"), ("GET", "/tasks")):
            answer = await client.request(method, path, json={}, headers={"Host": "evil.example"})
            assert (answer.status_code, answer.json()["code"]) == (403, "foreign_host")
        assert (await client.get("/healthz", headers={"Host": "10.1.2.3"})).status_code == 200
        for path in ("/docs", "/openapi.json", "/", "/metrics", "/types"):
            assert (await client.get(path, headers={"Host": "evil.example"})).status_code == 403
