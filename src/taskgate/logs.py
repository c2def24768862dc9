"""One way to log for all programs: structlog, one line an event on standard error (docs/reference/log-events.md)."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import msgspec

# structlog takes rich in where it is installed: 5 MB in every worker, for tracebacks that we print plainly.
_HIDE_RICH = "rich" not in sys.modules
if _HIDE_RICH:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402

if _HIDE_RICH:
    del sys.modules["rich"]

Processor = structlog.typing.Processor


def configure(log_format: Literal["auto", "console", "json"] = "auto", level: str = "info") -> None:
    """Set up logging for this process. `auto` is `console` on a terminal, else `json`."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    render: list[Processor] = (
        [
            _as_exception,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_FromLibraries()]
    root.setLevel(logging.WARNING)


def get_logger(name: str) -> Any:
    """A logger whose lines carry `component=name`: the part of the program, such as `api` or `worker`."""
    return structlog.get_logger(component=name)


def _as_exception(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """People read the field `traceback` below the line, not quoted in it."""
    if "traceback" in event:
        event["exception"] = event.pop("traceback")
    return event


def _json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


class _FromLibraries(logging.Handler):
    """What libraries say through `logging` goes the same way, as event `library`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            log = structlog.get_logger(component=record.name)
            log.log(min(record.levelno, logging.CRITICAL), "library", message=record.getMessage(),
                    exc_info=record.exc_info or None)  # fmt: skip
        except Exception:  # a log line must never stop the program
            self.handleError(record)
