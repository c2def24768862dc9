"""The thin typed client of the SQL functions. Only this package names SQL.

Every method is one round trip. It takes any asyncpg connection or pool; inside a transaction of the caller's
it is part of that transaction. Errors of the database pass through as asyncpg raises them.
"""

from __future__ import annotations

from taskgate.protocol.operating import OperatorCalls
from taskgate.protocol.producing import ProducerCalls
from taskgate.protocol.reading import ReaderCalls
from taskgate.protocol.records import (
    INLINE_BYTES,
    ClaimAnswer,
    ClaimedTask,
    Failure,
    NewTask,
    Release,
    Remembered,
    Verdicts,
    WorkerInfo,
)
from taskgate.protocol.session import Executor, server_settings
from taskgate.protocol.working import WorkerCalls

__all__ = [
    "INLINE_BYTES", "Calls", "ClaimAnswer", "ClaimedTask", "Executor", "Failure", "NewTask", "Release", "Remembered",
    "Verdicts", "WorkerInfo", "server_settings",
]  # fmt: skip


class Calls(ProducerCalls, WorkerCalls, OperatorCalls, ReaderCalls):
    """All calls, for one installation (`schema` is where the tasks table lives)."""
