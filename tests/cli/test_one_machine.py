"""docs/how-to/one-machine.md: its block of commands, run as it stands but for the ports and the superuser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from taskgate.local.ports import free_port
from taskgate.local.postgres import EmbeddedPostgres
from tests.programs import TASKGATE, Program, environment
from tests.waiting import LONG

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "one-machine.md"


@pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "openssl", "psql"))), reason="NOT TESTED: a tool is missing"
)
def test_the_block_runs(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    port = free_port()
    script = block.replace(":5432/", f":{postgres.port}/").replace(":8000", f":{port}").replace("8000", str(port))
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nshift 3\nexec psql "$SUPERUSER" "$@"\n')
    sudo.chmod(0o755)
    with Program([TASKGATE, "fake-provider", "--port", "0"], environment()) as provider:
        place = provider.line("fake provider listening on ").split()[4]
        env = environment(
            PATH=os.pathsep.join([str(tmp_path), str(Path(TASKGATE).parent), os.environ["PATH"]]),
            SUPERUSER=postgres.dsn,
            OPENAI_API_KEY="any",
            OPENAI_BASE_URL=f"{place}/v1",
            TASKGATE_LOG_FORMAT="json",
        )
        # a process group of its own, to end what the script started in the background
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"{script}\nkill $(jobs -p)\nwait"],
            env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = shell.communicate(timeout=2 * LONG)
            with psycopg.connect(postgres.dsn_of("taskgate")) as connection:
                tasks = connection.execute("SELECT status, tenant FROM tasks").fetchall()
                limit = connection.execute("SELECT max_concurrent FROM taskgate.settings").fetchone()
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
            postgres.drop_database("taskgate")
            with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                connection.execute("DROP ROLE IF EXISTS taskgate")
    assert shell.returncode == 0, output
    assert tasks == [("completed", "ops")]
    assert limit == (20,)
    assert output.count('"event": "worker_started"') + output.count('"event":"worker_started"') == 2, output
    assert (tmp_path / "taskgate.env").stat().st_mode & 0o777 == 0o600
