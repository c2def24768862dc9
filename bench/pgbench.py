"""pgbench, from the same PostgreSQL that is measured: the database alone, without any worker."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from taskgate.local.binaries import wheel_prefix

SCRIPTS = Path(__file__).with_name("sql")
FOREVER = 86_400  # seconds


def pgbench(dsn: str, script: str, clients: int, transactions: int, **variables: int) -> float:
    """Transactions a second of bench/sql/`script`, so many by each client. Raises RuntimeError if any failed."""
    command = _command(dsn, script, clients, f"--transactions={transactions}", variables)
    done = subprocess.run(command, capture_output=True, text=True)
    rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    whole = f"actually processed: {clients * transactions}/{clients * transactions}"
    if done.returncode or rate is None or whole not in done.stdout:
        raise RuntimeError(f"pgbench ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return float(rate[1])


def endless(dsn: str, script: str, clients: int, **variables: int) -> list[str]:
    """The command that runs bench/sql/`script` again and again until it is stopped or a statement fails."""
    return _command(dsn, script, clients, f"--time={FOREVER}", variables)


def _command(dsn: str, script: str, clients: int, length: str, variables: dict[str, int]) -> list[str]:
    command = [str(wheel_prefix() / "bin" / "pgbench"), "--no-vacuum", "--protocol=prepared", "--exit-on-abort"]
    command += [f"--file={SCRIPTS / script}", f"--client={clients}", length]
    return [*command, *(f"--define={name}={value}" for name, value in variables.items()), dsn]
