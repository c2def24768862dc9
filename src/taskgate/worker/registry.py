"""Which handlers a worker serves: the built-in ones and those of `--app module:handlers`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from taskgate.settings import Settings
from taskgate.task import Handlers, default_handlers


class BadApp(Exception):
    """`--app` or `--types` names something that is not there; the message says what."""


def load(apps: Sequence[str], types: Sequence[str], settings: Settings) -> Handlers:
    """The handlers of `apps` and the built-in ones; only `types` of them when given.

    An app is `module`, whose `@handler` functions are taken from the default registry, or `module:name`, where
    name is a `Handlers`. Beside apps the built-in `llm` is served when a provider is configured or `types` names
    it: a worker without a key must not take such tasks from those that have one. Raises BadApp.
    """
    found = Handlers()
    where = str(Path.cwd())
    if apps and where not in sys.path:
        sys.path.insert(0, where)  # so that `--app tasks` finds ./tasks.py
    for app in apps:
        registry = _registry(app)
        for each in registry:
            if found.get(each.name) not in (None, each):
                raise BadApp(f"--app {app}: task type {each.name!r} has two handlers")
            if found.get(each.name) is None:
                found.add(each)
    if found.get("llm") is None and (
        "llm" in types or (not types and (not apps or settings.openai_api_key or settings.openai_base_url))
    ):
        from taskgate.handlers.llm import llm_handler

        found.add(llm_handler(settings))
    if not types:
        return found
    chosen = Handlers()
    for name in dict.fromkeys(types):
        each_or_none = found.get(name)
        if each_or_none is None:
            raise BadApp(f"--types {name}: no handler for it; there are {', '.join(found.names()) or 'none'}")
        chosen.add(each_or_none)
    return chosen


def _registry(app: str) -> Handlers:
    module_name, _, attribute = app.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise BadApp(
                f"--app {app}: there is no module {error.name!r} in the current folder or on PYTHONPATH"
            ) from None
        raise BadApp(f"--app {app}: {module_name} imports {error.name!r}, which is not installed") from error
    registry = getattr(module, attribute, None) if attribute else default_handlers
    if not isinstance(registry, Handlers):
        raise BadApp(f"--app {app}: {module_name} has no Handlers() called {attribute!r}")
    if not len(registry):
        raise BadApp(f"--app {app}: it registers no handler")
    return registry
