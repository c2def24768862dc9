"""Which handlers a worker serves: the built-in ones and those of `--app module` or `--app module:name`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from taskgate.settings import Settings
from taskgate.task import Handlers, default_handlers

BUILT_IN = ("llm", "veo")


class BadApp(Exception):
    """`--app` or `--types` names something that is not there; the message says what."""


def load(apps: Sequence[str], types: Sequence[str], settings: Settings) -> Handlers:
    """The handlers of `apps` and the built-in ones; only `types` of them when given.

    An app is `module`, whose `@handler` functions are taken from the default registry, or `module:name`, where
    name is a `Handlers` or one of those functions. Beside apps the built-in `llm` and `veo` are served when a provider
    is configured or `types` names them: a worker without a key must not take such tasks from those that have one.
    Raises BadApp.
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
    if found.get("veo") is None and (
        "veo" in types
        or (not types and (not apps or settings.gemini_api_key or settings.gemini_base_url or settings.google_project))
    ):
        from taskgate.handlers.video.handler import veo_handler

        found.add(veo_handler(settings))
    if not types:
        return found
    chosen = Handlers()
    for name in dict.fromkeys(types):
        each_or_none = found.get(name)
        if each_or_none is None:
            raise BadApp(
                f"--types {name}: no handler for it; there are {', '.join(_all_names(found))}. llm and veo are built "
                "in; any other type is served by the worker whose --app MODULE has its handler"
            )
        chosen.add(each_or_none)
    return chosen


def _all_names(found: Handlers) -> list[str]:
    return [*BUILT_IN, *(name for name in found.names() if name not in BUILT_IN)]


def _registry(app: str) -> Handlers:
    module_name, _, attribute = app.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        name = Path(module_name).stem
        raise BadApp(f"--app {app}: that is a file; a module is named without folder and .py: --app {name}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise BadApp(
                f"--app {app}: there is no module {error.name!r} in the current folder or on PYTHONPATH"
            ) from None
        raise BadApp(f"--app {app}: {module_name} imports {error.name!r}, which is not installed") from error
    named = getattr(module, attribute, None) if attribute else default_handlers
    registry = named if isinstance(named, Handlers) else _registered_as(named)
    if attribute and not isinstance(named, Handlers) and not len(registry):
        raise BadApp(
            f"--app {app}: {attribute!r} is neither a Handlers() nor an @handler function of {module_name}; "
            f"{_what_works(module)}"
        )
    if not len(registry):
        raise BadApp(f"--app {app}: it registers no handler; {_what_works(module)}")
    return registry


def _registered_as(function: object) -> Handlers:
    """What the module-level `@handler` registered this function for."""
    found = Handlers()
    for each in default_handlers:
        if each.function is function:
            found.add(each)
    return found


def _what_works(module: ModuleType) -> str:
    name = module.__name__
    ways = [f"--app {name}:{key} (a registry)" for key, value in vars(module).items()
            if isinstance(value, Handlers) and value is not default_handlers and len(value)]  # fmt: skip
    if len(default_handlers):
        ways.insert(0, f"--app {name} (all its @handler functions)")
    if not ways:
        return "decorate a function with @handler(TYPE), of `from taskgate import handler`"
    return f"what works: {', '.join(ways)}"
