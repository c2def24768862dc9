"""The conformance cases against the API that comes with taskgate, with and without keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.http.runner import Case, Target, load_cases, run
from taskgate.local.postgres import EmbeddedPostgres
from tests.api.api_process import ApiProcess

KEYS = {"a": "secret-of-a", "b": "secret-of-b", "admin": "secret-of-ops"}
CASES = list(load_cases())


@pytest.fixture(scope="module")
def open_api(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Target]:
    url = postgres.create_database("conformance_open", migrated_template)
    with ApiProcess(url) as api:
        yield Target(api.url)
    postgres.drop_database("conformance_open")


@pytest.fixture(scope="module")
def keyed_api(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Target]:
    url = postgres.create_database("conformance_keys", migrated_template)
    keys = f"a:{KEYS['a']}, b:{KEYS['b']}, ops:{KEYS['admin']}:admin"
    with ApiProcess(url, TASKGATE_API_KEYS=keys) as api:
        yield Target(api.url, KEYS)
    postgres.drop_database("conformance_keys")


@pytest.mark.parametrize("case", [case for case in CASES if not case.keys], ids=lambda case: case.id)
def test_without_keys(case: Case, open_api: Target) -> None:
    assert run(case, open_api) is None


@pytest.mark.parametrize("case", [case for case in CASES if case.keys], ids=lambda case: case.id)
def test_with_keys(case: Case, keyed_api: Target) -> None:
    assert run(case, keyed_api) is None


def test_a_wrong_answer_is_noticed(open_api: Target) -> None:
    step = {"request": {"method": "GET", "path": "/healthz"}, "expect": {"status": 200, "json": {"status": "ill"}}}
    assert "expected 'ill'" in str(run(Case("", "", [step], False), open_api))
    step = {"request": {"method": "GET", "path": "/healthz"}, "expect": {"status": 202}}
    assert "status 200 instead of 202" in str(run(Case("", "", [step], False), open_api))
