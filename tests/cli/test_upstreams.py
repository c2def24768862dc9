"""taskgate upstreams: a file becomes the table, and what is wrong with it is said before anything changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskgate.upstreams_file import BadUpstreams, read_upstreams
from tests.cli.conftest import run
from tests.programs import environment

LOCAL = """[upstreams.local]
api = "openai"
base_url = "http://127.0.0.1:11434/v1/"
models = ["qwen*"]
max_concurrent = 4
"""
VIDEO = '[upstreams.video]\napi = "vertex"\nproject = "p"\nmodels = ["veo-*"]\n'


def test_apply_and_list(database: str, tmp_path: Path) -> None:
    env = environment(DATABASE_URL=database)
    file = tmp_path / "upstreams.toml"
    file.write_text(LOCAL + VIDEO)
    ran = run(env, "upstreams", "apply", str(file), "--json")
    assert ran.json == [{"name": "local", "change": "added"}, {"name": "video", "change": "added"}]
    file.write_text(LOCAL.replace("= 4", "= 8"))
    ran = run(env, "upstreams", "apply", str(file), "--json")
    assert ran.json == [{"name": "local", "change": "changed"}, {"name": "video", "change": "removed"}]
    assert run(env, "upstreams", "apply", str(file), "--json").json == [{"name": "local", "change": "same"}]
    (shown,) = run(env, "upstreams", "list", "--json").json
    assert (shown["base_url"], shown["models"], shown["max_concurrent"]) == ("http://127.0.0.1:11434/v1", ["qwen*"], 8)
    assert shown["limit"] == 8
    assert "local" in run(env, "upstreams", "list").out
    run(env, "limits", "unset", "--upstream", "local")
    assert "no limit (file: 8)" in run(env, "upstreams", "list").out
    run(env, "limits", "set", "3", "--each-upstream")
    assert "3 (file: 8)" in run(env, "upstreams", "list").out
    assert run(env, "upstreams", "apply", str(file), "--json").json == [{"name": "local", "change": "changed"}]
    assert run(env, "upstreams", "list", "--json").json[0]["limit"] == 8


def test_an_empty_file_removes_all_only_when_that_is_said(database: str, tmp_path: Path) -> None:
    env = environment(DATABASE_URL=database)
    file = tmp_path / "upstreams.toml"
    file.write_text(LOCAL)
    run(env, "upstreams", "apply", str(file))
    file.write_text("# all of it commented out\n")
    ran = run(env, "upstreams", "apply", str(file), "--json")
    assert (ran.code, ran.error["code"]) == (2, "bad_upstreams")
    assert "--empty" in ran.error["message"]
    assert len(run(env, "upstreams", "list", "--json").json) == 1
    ran = run(env, "upstreams", "apply", str(file), "--empty", "--json")
    assert ran.json == [{"name": "local", "change": "removed"}]


def test_the_help_names_the_table(database: str) -> None:
    assert "[upstreams.NAME]" in run(environment(), "upstreams", "apply", "--help").out


def test_one_model_of_one_api_has_one_upstream(tmp_path: Path) -> None:
    file = tmp_path / "upstreams.toml"
    one, two = (f'[upstreams.{name}]\napi = "openai"\nmodels = ["m-1", "m-*"]\n' for name in ("one", "two"))
    file.write_text(one + two)
    with pytest.raises(BadUpstreams, match=r"upstreams\.one and upstreams\.two both name the model 'm-1'"):
        read_upstreams(file)
    file.write_text(one + two + "enabled = false\n")
    assert len(read_upstreams(file)) == 2
    file.write_text(one + two.replace('"openai"', '"gemini"'))
    assert len(read_upstreams(file)) == 2


def test_migrate_applies_the_file_that_is_set(database: str, tmp_path: Path) -> None:
    file = tmp_path / "upstreams.toml"
    file.write_text(LOCAL)
    env = environment(DATABASE_URL=database, TASKGATE_UPSTREAMS_FILE=str(file))
    assert "upstream local: added" in run(env, "migrate").out
    file.write_text("[upstreams.local]\napi = 'opnai'\n")
    ran = run(env, "migrate", "--json")
    assert (ran.code, ran.error["code"]) == (2, "bad_upstreams")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = [", "is not TOML"),
        ("[upstream.local]\napi = 'openai'", "each upstream is a table"),
        ("[upstreams.Local]\napi = 'openai'", "'Local' is no name"),
        ("[upstreams.local]\n", "upstreams.local.api"),
        (
            "[upstreams.local]\napi = 'openai'\nkey = 'secret'",
            "upstreams.local.key: no key stands in this file: .*key_env",
        ),
        (
            "[upstreams.local]\napi = 'openai'\nmodel_s = []",
            r"upstreams.local.model_s: is no key; did you mean models\?",
        ),
        ("[upstreams.local]\napi = 'openai'\nzzz = 1", "upstreams.local.zzz: is no key; these are: api, base_url"),
        ("upstreams = 3", "must be tables"),
        ("[upstreams]\nlocal = 3", "upstreams.local: must be a table"),
        ("[upstreams.local]\napi = 'openai'\nbase_url = 'localhost:1'", "must begin with http"),
        ("[upstreams.local]\napi = 'openai'\nbase_url = 'http://me:pw@h'", "no user, password or query"),
        ("[upstreams.local]\napi = 'openai'\nkey_env = 'A'\nkey_file = 'b'", "key_env or key_file, not both"),
        ("[upstreams.local]\napi = 'openai'\nmodels = ['a*b']", "may stand at its end only"),
        ("[upstreams.local]\napi = 'openai'\nproject = 'p'", "belong to the API vertex"),
        ("[upstreams.local]\napi = 'openai'\nmax_concurrent = -1", "upstreams.local.max_concurrent"),
    ],
)
def test_a_file_that_is_wrong_is_told_where(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "upstreams.toml"
    file.write_text(content)
    with pytest.raises(BadUpstreams, match=words):
        read_upstreams(file)


def test_all_mistakes_are_told_at_once_and_no_key_is_repeated(tmp_path: Path) -> None:
    file = tmp_path / "upstreams.toml"
    file.write_text(
        "[upstreams.one]\napi = 'opnai'\nkey = 'sk-secret'\nkey_env = 'A'\nkey_file = 'b'\nmax_concurrent = -1\n"
        "[upstreams.Two]\napi = 'openai'\nmodles = ['m']\n[other]\n"
    )
    with pytest.raises(BadUpstreams) as caught:
        read_upstreams(file)
    assert [place for place, _ in caught.value.mistakes] == [
        "other", "upstreams.one.api", "upstreams.one.max_concurrent", "upstreams.one.key", "upstreams.one",
        "upstreams.Two", "upstreams.Two.modles",
    ]  # fmt: skip
    ran = run(environment(), "upstreams", "apply", str(file))
    assert ran.code == 2
    assert f"Error: {file} has 7 mistakes\n" in ran.err
    assert "  upstreams.Two.modles: is no key; did you mean models?\n" in ran.err
    assert "sk-secret" not in ran.err + str(caught.value)
    errors = run(environment(), "upstreams", "apply", str(file), "--json").error["errors"]
    assert [each["pointer"] for each in errors] == [place for place, _ in caught.value.mistakes]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadUpstreams, match="cannot read"):
        read_upstreams(tmp_path / "none.toml")
