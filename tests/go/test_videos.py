"""The Go worker pays once and follows a thousand videos: the same tests as of the Python worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fault.test_cancelled_videos import (
    studio,
    test_a_provider_that_cannot_cancel_it_just_now,
    test_cancelled_before_the_handler_has_begun,
    test_cancelled_when_its_time_is_up,
)
from tests.fault.test_paid_once import test_no_kill_makes_a_second_submission, test_one_worker_follows_many_open_videos
from tests.processes import WorkerProcess
from tests.worker_fixtures import table, worker_starter

__all__ = [
    "studio",
    "table",
    "test_a_provider_that_cannot_cancel_it_just_now",
    "test_cancelled_before_the_handler_has_begun",
    "test_cancelled_when_its_time_is_up",
    "test_no_kill_makes_a_second_submission",
    "test_one_worker_follows_many_open_videos",
]


@pytest.fixture
def start_worker(database: str, go_program: str) -> Iterator[Callable[..., WorkerProcess]]:
    """As in tests/worker_fixtures.py, for the Go worker."""
    with worker_starter(database, app=None, program=go_program) as start:
        yield start
