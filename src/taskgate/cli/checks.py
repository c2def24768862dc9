"""What `doctor` looks at: each check reads gathered facts and says ok, warn or fail, with a remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from taskgate.cli.output import duration

if TYPE_CHECKING:
    from taskgate.settings import Settings

SILENT_SECONDS = 120.0  # a worker shows a sign of life about every 20 s; the stats count it alive for as long
OLD_SNAPSHOT_SECONDS = 300.0
LONG_LOCK_SECONDS = 2.0
STALE_PENDING_SECONDS = 60.0
LATE_RECOVERY_SECONDS = 30.0
CLOCK_SKEW_SECONDS = 5.0
JSONB_BYTES = 255 * 1024**2


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: Literal["ok", "warn", "fail"]
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database told, read in one go."""

    fleet: Any
    stats: Any
    groups: list[Any]
    cooldowns: list[Any]
    by_type: list[Any]
    due: list[Any]
    workers: list[Any]
    overdue: Any
    lock: Any
    snapshots: list[Any]
    skew: timedelta
    """The database's clock minus this machine's."""

    @property
    def alive(self) -> list[Any]:
        return [row for row in self.workers if row["silent_seconds"] <= SILENT_SECONDS]

    def room(self, task_type: str) -> int:
        """Free slots, by their last sign of life, of the live workers that serve this type and claim."""
        serving = (
            row for row in self.alive if not row["draining"] and (row["types"] is None or task_type in row["types"])
        )
        return sum(max(0, row["slots"] - row["busy"]) for row in serving)


def check_facts(facts: Facts, settings: Settings) -> Iterator[Check]:
    """Every check on a database that is reachable and has the right schema."""
    yield _limit(facts)
    yield from _groups(facts)
    yield from _workers(facts)
    yield from _unserved(facts)
    yield _pending(facts)
    yield _overdue(facts)
    yield _lock(facts)
    yield from _snapshots(facts)
    yield _clock(facts)
    yield from check_settings(settings, facts)


def _limit(facts: Facts) -> Check:
    limit, running = facts.stats["limit"], facts.stats["running"]
    if limit == 0:
        return Check("limit", "warn", f"0: the queue is paused ({running} running)", "taskgate limits set 20")
    if running > limit:
        return Check("limit", "ok", f"{running} running, the limit was lowered to {limit}: those finish first")
    return Check("limit", "ok", f"{running} running of {limit}")


def _groups(facts: Facts) -> Iterator[Check]:
    """What keeps tasks of a group from starting though the fleet has room."""
    for row in facts.cooldowns:
        why = row["reason"] or "throttled"
        text = f"{row['scope']} {row['name']} starts nothing for {duration(row['seconds'])}: {why}"
        yield Check("cool-down", "warn", text, "Its provider said so; lower its rate: `taskgate limits rate`.")
    for row in facts.groups:
        of = f"each {row['scope']}" if row["name"] == "*" else f"{row['scope']} {row['name']}"
        unset = f"taskgate limits unset --{'each-' if row['name'] == '*' else ''}{row['scope']}" + (
            "" if row["name"] == "*" else f" {row['name']}"
        )
        if row["max_concurrent"] == 0:
            yield Check("limit", "warn", f"{of} is paused", unset)
        elif row["max_concurrent"] is not None and row["running"] >= row["max_concurrent"]:
            yield Check("limit", "ok", f"{of} is at its limit of {row['max_concurrent']}")


def _workers(facts: Facts) -> Iterator[Check]:
    alive = facts.alive
    waiting = facts.stats["pending"] + facts.stats["running"]
    if alive:
        slots, limit = facts.stats["slots"], facts.stats["limit"]
        text = f"{len(alive)} alive with {slots} slots"
        if slots < limit:
            yield Check(
                "workers",
                "warn",
                f"{text}, fewer than the limit of {limit}: it can never be reached",
                "Start more workers, raise TASKGATE_SLOTS, or lower the limit.",
            )
        else:
            yield Check("workers", "ok", text)
    elif waiting:
        yield Check("workers", "fail", f"none is alive, and {waiting} tasks wait", "Start one: taskgate worker")
    else:
        yield Check("workers", "warn", "none is alive", "Start one: taskgate worker")
    for row in facts.workers:
        if row["silent_seconds"] > SILENT_SECONDS:
            yield Check(
                "silent worker",
                "warn",
                f"{row['worker_id']} on {row['host']} was last seen {duration(row['silent_seconds'])} ago",
                "It died, froze or lost the network; its tasks are recovered. It is forgotten after a day.",
            )


BUILT_IN = {
    "llm": "Start a worker that knows a provider, else its tasks fail: set OPENAI_API_KEY (or OPENAI_BASE_URL, for a "
    "server of your own), or add an upstream; then: taskgate worker --types llm",
    "veo": "Start a worker that knows a provider, else its tasks fail: set GEMINI_API_KEY, or add an upstream; then: "
    "taskgate worker --types veo",
}
"""What the types need whose handlers are our own."""


def _unserved_types(facts: Facts) -> dict[str, int]:
    """The types of pending tasks that no live worker serves, and how many wait."""
    served = {name for row in facts.alive for name in row["types"] or []}
    pending = {row["task_type"]: row["tasks"] for row in facts.by_type if row["status"] == "pending"}
    return {name: count for name, count in pending.items() if name not in served}


def _unserved(facts: Facts) -> Iterator[Check]:
    for name, count in _unserved_types(facts).items():
        if facts.alive:
            yield Check(
                "task types",
                "fail",
                f"{count} tasks of type {name} wait, and no live worker serves that type",
                BUILT_IN.get(name, f"Start a worker with its handler: taskgate worker --app MODULE --types {name}"),
            )


def _pending(facts: Facts) -> Check:
    stats = facts.stats
    oldest = stats["oldest_pending_seconds"]
    text = f"{stats['pending']} pending, {stats['delayed']} of them for later"
    if oldest is None:
        return Check("queue", "ok", text)
    text += f"; the oldest has waited {duration(oldest)}"
    if stats["running"] < stats["limit"]:
        for row in facts.due:
            name, seconds = row["task_type"], row["oldest_seconds"]
            room = facts.room(name)
            if seconds > STALE_PENDING_SECONDS and room > 0:
                return Check(
                    "queue",
                    "warn",
                    f"{text}; one of type {name} has waited {duration(seconds)}, though the limit and its workers "
                    f"have room ({room} free slots)",
                    "See the workers' logs, and whether somebody holds the claim lock.",
                )
    return Check("queue", "ok", text)


def _overdue(facts: Facts) -> Check:
    count, longest = facts.overdue["overdue"], facts.overdue["longest_seconds"] or 0.0
    if not count:
        return Check("leases", "ok", "none is overdue")
    text = f"{count} running tasks are past their lease, the longest by {duration(longest)}"
    if longest > LATE_RECOVERY_SECONDS:
        return Check("leases", "fail", text, "Nobody recovers them: start an API or a worker, and see its log.")
    return Check("leases", "ok", f"{text}: about to be recovered")


def _lock(facts: Facts) -> Check:
    if facts.lock is None:
        return Check("claim lock", "ok", "free")
    row = facts.lock
    seconds = row["open_seconds"] or 0.0
    who = f"process {row['pid']} ({row['application_name'] or row['usename']}, {row['client_addr'] or 'local'})"
    text = f"held for {duration(seconds)} by {who}, {row['state']}"
    if seconds < LONG_LOCK_SECONDS:
        return Check("claim lock", "ok", text)
    return Check("claim lock", "fail", f"{text}: nobody can claim", f"SELECT pg_terminate_backend({row['pid']})")


def _snapshots(facts: Facts) -> Iterator[Check]:
    if not facts.snapshots:
        yield Check("snapshots", "ok", f"none older than {duration(OLD_SNAPSHOT_SECONDS)}")
    for row in facts.snapshots:
        who = row["application_name"] or row["usename"]
        yield Check(
            "snapshots",
            "warn",
            f"process {row['pid']} ({who}, {row['state']}) has held one for {duration(row['open_seconds'])}: "
            "vacuum cannot clean up behind it",
            f"End that transaction: SELECT pg_terminate_backend({row['pid']})",
        )


def _clock(facts: Facts) -> Check:
    seconds = facts.skew.total_seconds()
    if abs(seconds) <= CLOCK_SKEW_SECONDS:
        return Check("clock", "ok", "agrees with the database's")
    side = "ahead of" if seconds > 0 else "behind"
    return Check(
        "clock",
        "warn",
        f"the database's is {duration(abs(seconds))} {side} this machine's",
        "Leases go by the database's clock alone; run_at is compared with it. Synchronise both (NTP).",
    )


def check_settings(settings: Settings, facts: Facts) -> Iterator[Check]:
    """Settings of this environment that contradict each other, or what the database was told."""
    found = [*_contradictions(settings), *_not_migrated(settings, facts)]
    yield from found
    if not found:
        yield Check("settings", "ok", "no contradiction in this environment")


def _contradictions(settings: Settings) -> Iterator[Check]:
    lease, timeout, grace = settings.lease_seconds, settings.timeout_seconds, settings.grace_seconds
    if lease < 5:
        yield Check(
            "settings",
            "warn",
            f"TASKGATE_LEASE_SECONDS={lease:g} is renewed every {lease / 3:.1f} s: a short stall loses tasks",
            "Use 15 or more; the default is 60.",
        )
    if lease > max(timeout, 60):
        yield Check(
            "settings",
            "warn",
            f"TASKGATE_LEASE_SECONDS={lease:g} is longer than an attempt may take ({timeout:g} s): a dead worker's "
            "tasks wait a whole lease",
            "A lease is renewed while a task runs; 60 is enough for any length.",
        )
    if settings.poll_seconds > 60:
        yield Check(
            "settings",
            "warn",
            f"TASKGATE_POLL_SECONDS={settings.poll_seconds:g}: a task whose notification was lost waits as long",
            "Use 15 or less.",
        )
    if grace > 600:
        yield Check(
            "settings",
            "warn",
            f"TASKGATE_GRACE_SECONDS={grace:g}: orchestrators kill long before (Docker 10 s, Kubernetes 30 s)",
            "Set their stop period (stop_grace_period, terminationGracePeriodSeconds) above it as well.",
        )
    for name, size in (
        ("TASKGATE_MAX_BODY_BYTES", settings.max_body_bytes),
        ("TASKGATE_MAX_RESULT_BYTES", settings.max_result_bytes),
    ):
        if size > JSONB_BYTES:
            yield Check("settings", "fail", f"{name}={size} is more than jsonb can hold", f"Use {JSONB_BYTES} or less.")
    if (
        settings.host not in ("127.0.0.1", "::1", "localhost")
        and not settings.api_keys
        and not settings.allow_anonymous
    ):
        yield Check(
            "settings",
            "fail",
            f"TASKGATE_HOST={settings.host} without keys: everybody but this machine is refused",
            'Set TASKGATE_API_KEYS="name:SECRET", or TASKGATE_ALLOW_ANONYMOUS=1 on a private network.',
        )


def _not_migrated(settings: Settings, facts: Facts) -> Iterator[Check]:
    """A fleet-wide value that was changed in the environment takes hold with the next migrate."""
    configured = json.loads(facts.fleet["configured"])
    names = {
        "max_concurrent": ("MAX_CONCURRENT_TASKS", "max_concurrent_tasks"),
        "max_attempts": ("TASKGATE_MAX_ATTEMPTS", "max_attempts"),
        "max_throttle": ("TASKGATE_MAX_THROTTLE_SECONDS", "max_throttle_seconds"),
        "result_ttl": ("TASKGATE_RESULT_TTL_SECONDS", "result_ttl_seconds"),
    }
    for key, value in settings.fleet_values().items():
        variable, field = names[key]
        if field in settings.model_fields_set and configured.get(key) != value:
            yield Check(
                "settings",
                "warn",
                f"{variable}={value:g} here, but the database was last told {configured.get(key)}",
                "The database is the one truth: run `taskgate migrate` to hand it over.",
            )
