"""Paid calls whose fate nobody knows."""

from __future__ import annotations

from typing import Any

from taskgate.task import PermanentError, Retry, TaskError

AMBIGUOUS = "submit_ambiguous"
UNKNOWN_STATUSES = frozenset({408, 499, 502, 504, *range(520, 525)})
"""Answers of gateways that gave up or lost the connection behind them (520 to 524: Cloudflare's). They say nothing of
the call itself, which may have been taken; 500, 503 and 429 are the provider's own word that it was not.
"""


def ambiguous(why: str, account: Any, *, retry: bool) -> TaskError:
    """The error for a call that may have been taken, and paid: the end of the task, unless `retry`."""
    info = {"submit": {"why": why, "account": account}}
    if retry:
        words = f"the submission may or may not have been taken ({why}): sent again"
        return Retry(words, code="submit_unknown", info=info)
    return PermanentError(AMBIGUOUS, code=AMBIGUOUS, info=info)
