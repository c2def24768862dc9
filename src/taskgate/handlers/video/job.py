"""An operation at the provider, as an attempt follows it and as it is kept for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from taskgate.handlers.video.accounts import Account

MISSING_SINCE = "account_missing_since"
"""In the checkpoint, seconds since 1970: when a worker first missed the account. A retry by hand takes it out."""


@dataclass(slots=True)
class Job:
    """An operation at the provider that this attempt follows."""

    account: Account
    name: str
    model: str
    submitted: float
    """Seconds since 1970."""
    audio_retries: int = 0
    resumed: bool = False
    unwanted: bool = False
    """The task was cancelled while nobody followed it."""
    over: bool = False
    """There is nothing to cancel at the provider any more."""
    shown: Any = field(default=None, repr=False)
    """The progress that was reported last."""

    def operation(self, closed: str | None = None) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.submitted, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {"name": self.name, "api": self.account.api, "model": self.model, "submitted_at": at}
        if self.audio_retries:
            found["audio_retries"] = self.audio_retries
        return found if closed is None else {**found, "closed": closed}

    @classmethod
    def of(cls, account: Account, operation: Mapping[str, Any]) -> Job:
        """What `operation()` was kept as. Raises KeyError, TypeError or ValueError for what is no such thing."""
        submitted = datetime.fromisoformat(operation["submitted_at"]).timestamp()
        retries = int(operation.get("audio_retries", 0))
        unwanted = operation.get("cancel_requested") is True
        return cls(account, str(operation["name"]), str(operation["model"]), submitted, retries, True, unwanted)
