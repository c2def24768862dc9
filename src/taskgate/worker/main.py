"""`python -m taskgate.worker`: arguments, settings, handlers, then the worker until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence

EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker; answers the exit code: 0 drained, 2 wrong settings, 3 schema mismatch, 128+n second signal,
    70 a handler blocked the event loop for ever (see watchdog.py).
    """
    parser = argparse.ArgumentParser(prog="taskgate worker", description="Runs tasks until SIGTERM.")
    parser.add_argument("--app", action="append", default=[], metavar="MODULE[:NAME]",
                        help="serve a module's handlers, or one registry or function of it; repeatable")  # fmt: skip
    parser.add_argument("--types", default="", metavar="A,B", help="serve only these task types")
    given = parser.parse_args(arguments)
    types = [name for name in (part.strip() for part in given.types.split(",")) if name]
    return run_worker(given.app, types)


def run_worker(apps: Sequence[str], types: Sequence[str]) -> int:
    """What `main` does after it has read its arguments."""
    from pydantic import ValidationError

    from taskgate.logs import configure, get_logger
    from taskgate.setting_names import log_slips
    from taskgate.settings import Settings
    from taskgate.worker.registry import BadApp, load
    from taskgate.worker.worker import Worker

    try:
        settings = Settings()
        _ = settings.database
        configure(settings.log_format, settings.log_level)
        log_slips(get_logger("worker"), os.environ)
        handlers = load(apps, types, settings)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False, include_context=False):
            print(f"taskgate worker: {'.'.join(map(str, problem['loc']))}: {problem['msg']}", file=sys.stderr)
        return EXIT_USAGE
    except (ValueError, BadApp) as error:
        print(f"taskgate worker: {error}", file=sys.stderr)
        return EXIT_USAGE
    gc.collect()
    gc.freeze()  # what is there now stays: no collection need walk it
    worker = Worker(handlers, settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(worker.run())
        if worker.handlers_left:
            # threads of handlers that never return; waiting for them is what the grace was for
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(code)
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
