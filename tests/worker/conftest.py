"""What these tests share: a database as a test sees it, and worker processes that are cleaned up."""

from tests.worker_fixtures import start_worker, table

__all__ = ["start_worker", "table"]
