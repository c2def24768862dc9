"""What `--app` may name, and what is said when it names something else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskgate.settings import Settings
from taskgate.task import default_handlers
from taskgate.worker.registry import BadApp, load

MODULE = """
from taskgate import Handlers, Task, handler

@handler("summarize")
async def summarize(task: Task[dict[str, str]]) -> str:
    return "short"

@handler("twice-a")
@handler("twice-b")
def twice(task: Task[dict[str, str]]) -> None: ...

mine = Handlers()

@mine.handler("own")
def own(task: Task[dict[str, str]]) -> None: ...

empty = Handlers()
number = 5
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that registers handlers in both ways; forgotten afterwards."""
    before = dict(default_handlers._handlers)
    default_handlers._handlers.clear()
    name = "registry_test_work"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_none.py").write_text("number = 5")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for each in (name, f"{name}_none"):
        sys.modules.pop(each, None)
    default_handlers._handlers.clear()
    default_handlers._handlers.update(before)


@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("", {"summarize", "twice-a", "twice-b"}),
        (":summarize", {"summarize"}),
        (":twice", {"twice-a", "twice-b"}),
        (":mine", {"own"}),
    ],
)
def test_a_module_a_registry_or_a_function(work: str, attribute: str, names: set[str]) -> None:
    assert set(load([work + attribute], [], Settings.model_construct()).names()) == names


def test_a_function_and_its_module_together(work: str) -> None:
    found = load([f"{work}:summarize", work, f"{work}:mine"], [], Settings.model_construct())
    assert set(found.names()) == {"summarize", "twice-a", "twice-b", "own"}


@pytest.mark.parametrize("attribute", ["nothing", "number", "own"])
def test_anything_else_says_what_works(work: str, attribute: str) -> None:
    with pytest.raises(BadApp) as refused:
        load([f"{work}:{attribute}"], [], Settings.model_construct())
    text = str(refused.value)
    assert f"{attribute!r} is neither a Handlers() nor an @handler function of {work}" in text
    assert f"--app {work} (all its @handler functions)" in text
    assert f"--app {work}:mine (a registry)" in text
    assert "empty" not in text


def test_a_module_without_handlers(work: str) -> None:
    with pytest.raises(BadApp, match=r"it registers no handler; decorate a function with @handler"):
        load([f"{work}_none"], [], Settings.model_construct())
    with pytest.raises(BadApp, match="it registers no handler"):
        load([f"{work}:empty"], [], Settings.model_construct())


@pytest.mark.parametrize("app", ["work.py", "./work.py", "folder/work.py:mine"])
def test_a_file_is_told_how_a_module_is_named(app: str) -> None:
    with pytest.raises(BadApp, match=r"that is a file; .*: --app work$"):
        load([app], [], Settings())
