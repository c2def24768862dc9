"""Which peers there are: their pinned packages, how they are set, and where the advice for that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

UVLOOP = "uvloop==0.23.0"
PSYCOPG = "psycopg[binary]==3.3.9"


@dataclass(frozen=True)
class Tool:
    """A program that no package registry of the peer's language carries."""

    program: str
    remedy: str


@dataclass(frozen=True)
class Peer:
    """One queue. `finished` counts jobs that ended well, `unfinished` is true while there are others (both SQL).

    An empty query: it has no database, or its history of finished jobs is cut short while it runs.
    """

    name: str
    runtime: Literal["python", "node", "go"]
    packages: tuple[str, ...]
    adapter: str
    slots: tuple[int, ...]  # of the worker, one drain each
    drain_jobs: Mapping[int, int]  # slots → jobs, some seconds' worth
    setting: str  # how it is set to be at its best
    advice: str  # where that comes from
    unfinished: str = ""
    finished: str = ""
    bulk_jobs: int = 0  # 0: it has no bulk interface
    chunk: int = 1000
    submit_jobs: int = 2000
    python: str = "3.11"
    tools: tuple[Tool, ...] = ()
    redis: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


PGQUEUER = Peer(
    name="pgqueuer",
    runtime="python",
    packages=("pgqueuer==1.6.0", "asyncpg==0.32.0", UVLOOP),
    adapter="on_pgqueuer.py",
    slots=(20, 100, 400),
    drain_jobs={20: 15_000, 100: 40_000, 400: 60_000},
    bulk_jobs=50_000,
    unfinished="SELECT EXISTS (SELECT FROM pgqueuer)",
    finished="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
    setting="asyncpg on uvloop, one direct connection, batch of half the slots (the most it allows), `pgq autovac`, "
    "durability `durable`",
    advice="pgqueuer's docs/guides/performance-tuning.md and docs/comparisons/benchmarks.md",
)
PGBOSS = Peer(
    name="pg-boss",
    runtime="node",
    packages=("pg-boss@12.38.0", "node@22.23.3"),
    adapter="on_pgboss.mjs",
    slots=(1000,),
    drain_jobs={1000: 80_000},
    bulk_jobs=50_000,
    unfinished="SELECT EXISTS (SELECT FROM pgboss.job WHERE name = 'noop' AND state < 'completed')",
    finished="SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state = 'completed'",
    setting="batches of 1,000 with `burstWhenBatchFull`, the queue in a partition of its own; LISTEN/NOTIFY "
    "for latency only, where it is the best",
    advice="pg-boss's docs/api/workers.md and docs/api/queues.md",
    tools=(Tool("npm", "install Node.js with npm, version 20 or newer (the peer's own Node comes from npm)"),),
)
PROCRASTINATE = Peer(
    name="procrastinate",
    runtime="python",
    packages=("procrastinate==3.10.0", PSYCOPG, UVLOOP),
    adapter="on_procrastinate.py",
    slots=(20,),
    drain_jobs={20: 3_000},
    bulk_jobs=20_000,
    submit_jobs=1_000,
    unfinished="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    finished="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
    setting="psycopg with its C part, uvloop, LISTEN/NOTIFY, 20 jobs at once on as many connections",
    advice="procrastinate's docs/howto/production/concurrency",
)
OBAN = Peer(
    name="oban",
    runtime="python",
    packages=("oban==0.7.0", PSYCOPG, UVLOOP),
    python="3.12",
    adapter="on_oban.py",
    slots=(100,),
    drain_jobs={100: 15_000},
    bulk_jobs=15_000,
    unfinished="SELECT EXISTS (SELECT FROM oban_jobs WHERE state <> 'completed')",
    finished="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
    setting="uvloop, one queue of 100, connection pool as its command line has it",
    advice="oban-py's docs/production.md and docs/defining_queues.md",
)
AWA = Peer(
    name="awa-pg",
    runtime="python",
    packages=("awa-pg==0.6.9", UVLOOP),
    adapter="on_awa.py",
    slots=(20, 400),
    drain_jobs={20: 8_000, 400: 30_000},
    bulk_jobs=50_000,
    chunk=5_000,
    submit_jobs=1_000,
    unfinished="SELECT EXISTS (SELECT FROM awa.jobs WHERE state IN ('scheduled', 'available', 'running', 'retryable'))",
    setting="queue storage with its defaults, `enqueue_many_copy` for many jobs, uvloop",
    advice="awa's README and docs/configuration.md (Choosing a throughput lever)",
)
DBOS = Peer(
    name="dbos",
    runtime="python",
    packages=("dbos==3.4.0",),
    adapter="on_dbos.py",
    slots=(100,),
    drain_jobs={100: 2_500},
    submit_jobs=1_000,
    unfinished="SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))",
    finished="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
    setting="the queue polled every 0.05 s instead of every second, 100 workflows at once",
    advice="dbos's DBOS.register_queue(polling_interval_sec)",
)
CELERY = Peer(
    name="celery",
    runtime="python",
    packages=("celery[redis]==5.7.0",),
    adapter="on_celery.py",
    slots=(20,),
    drain_jobs={20: 3_000},
    submit_jobs=1_500,
    setting="Redis that syncs every write, 20 threads, late acknowledgement, results ignored, no gossip, mingle or "
    "heartbeat",
    advice="Celery's user guide (Optimizing) and Redis's appendfsync documentation",
    tools=(Tool("redis-server", "on Debian `apt-get install redis-server`"),),
    redis=True,
)
RIVER = Peer(
    name="river",
    runtime="go",
    packages=(
        "github.com/riverqueue/river@v0.51.2",
        "github.com/riverqueue/river/riverdriver/riverpgxv5@v0.51.2",
        "github.com/jackc/pgx/v5@v5.11.0",
    ),
    adapter="on_river.go",
    slots=(400, 2000),
    drain_jobs={400: 60_000, 2000: 60_000},
    bulk_jobs=50_000,
    chunk=5_000,
    unfinished="SELECT EXISTS (SELECT FROM river_job WHERE state <> 'completed')",
    finished="SELECT count(*) FROM river_job WHERE state = 'completed'",
    setting="pgx, fetch cooldown 2 ms, poll interval 20 ms, up to 2,000 workers, COPY for many jobs",
    advice="river's own benchmark, cmd/river/riverbench/river_bench.go",
    tools=(Tool("go", "install Go 1.26 or newer"),),
)

PEERS: dict[str, Peer] = {peer.name: peer for peer in (PGQUEUER, PGBOSS, PROCRASTINATE, AWA, OBAN, DBOS, CELERY, RIVER)}
