"""The `taskgate` command: every command in one list, and what errors come to."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, NoReturn

import typer

from taskgate.cli import doctor, limits, operate, psql, services, submit, tasks, upstreams, watch
from taskgate.cli.errors import explain, report, wants_json

RUN, PRODUCE, OPERATE = "Run", "Tasks (TASKGATE_URL)", "Operate (DATABASE_URL)"

app = typer.Typer(
    name="taskgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from taskgate import __version__

        typer.echo(f"taskgate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A task service for slow LLM and multimodal calls, on PostgreSQL alone.

    Exit codes: 0 done, 1 a task failed or something is unhealthy, 2 wrong usage, 3 the schema does not fit,
    4 not reachable.
    """


app.command(rich_help_panel=RUN)(services.up)
app.command(rich_help_panel=RUN)(services.api)
app.command(rich_help_panel=RUN)(services.worker)
app.command(rich_help_panel=RUN)(services.migrate)
app.command("fake-provider", rich_help_panel=RUN, context_settings=services.PASSED_ON)(services.fake_provider)

app.command(rich_help_panel=PRODUCE)(submit.submit)
app.command(rich_help_panel=PRODUCE)(tasks.get)
app.command("list", rich_help_panel=PRODUCE)(tasks.list_tasks)
app.command(rich_help_panel=PRODUCE)(watch.watch)
app.command(rich_help_panel=PRODUCE)(tasks.cancel)
app.command(rich_help_panel=PRODUCE)(tasks.retry)
app.add_typer(limits.limits, name="limits", rich_help_panel=OPERATE)
app.add_typer(upstreams.app, name="upstreams", rich_help_panel=OPERATE)
app.command(rich_help_panel=OPERATE)(operate.types)
app.command(rich_help_panel=OPERATE)(operate.stats)
app.command(rich_help_panel=OPERATE)(operate.purge)
app.command(rich_help_panel=OPERATE)(doctor.doctor)
app.command(rich_help_panel=OPERATE, context_settings=services.PASSED_ON)(psql.psql)


def run() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(_guarded())


def _guarded() -> int:
    try:
        code = app(standalone_mode=False, prog_name="taskgate")
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        expected = explain(error)
        if expected is None:
            raise
        if expected.code == "usage" and not wants_json() and _show_usage(error):
            return expected.exit_code
        report(expected)
        return expected.exit_code


def _show_usage(error: Exception) -> bool:
    """Shows a wrong command line as Typer does, with the command's usage."""
    show = getattr(error, "show", None)
    if show is None:
        return False
    show()
    return True


if __name__ == "__main__":
    run()
