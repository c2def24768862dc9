"""compose.yaml on a real engine: scaling, killed workers, stopping and starting, shapes of the fleet, secrets.

Needs docker, Compose v2 or 1.29, and either a running engine or root and dockerd; else the tests are skipped and say
why. The base images are stand-ins built here (images.py). The tests of this file go in order, on one project.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compose.engine import Engine, NoEngine, engine
from tests.compose.images import base_images
from tests.compose.project import SECRETS, Project, example_settings

LIMIT = 20
IDLE_FLEET_MIB = 120
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("compose")]


def _skip(reason: NoEngine) -> None:
    warnings.warn(f"DOCKER COMPOSE IS NOT TESTED: {reason}", stacklevel=2)  # shown at the end also with -q
    pytest.skip(f"DOCKER COMPOSE IS NOT TESTED: {reason}")


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    try:
        with engine() as found:
            yield found
    except NoEngine as reason:
        _skip(reason)


@pytest.fixture(scope="module")
def project(docker: Engine) -> Iterator[Project]:
    try:
        images = base_images(docker)
    except NoEngine as reason:
        _skip(reason)
    with tempfile.TemporaryDirectory(prefix="taskgate-compose-") as folder:
        made = Project(docker, Path(folder), images)
        try:
            made.compose("build", "--quiet", "api", "worker", timeout=900)
            made.compose("build", "--quiet", "migrate", "fake-provider")
            yield made
        finally:
            made.remove()


@pytest.fixture
def fresh(project: Project) -> Project:
    """The project, running without workers, with no task and a provider that has counted nothing."""
    project.files = project.files[:1]
    project.up(0)
    project.sql("TRUNCATE tasks, workers CASCADE")  # killed workers would count as there for a while
    project.provider("/stats/reset", method="POST")
    return project


def test_a_password_must_be_set(project: Project) -> None:
    password = project.settings.pop("POSTGRES_PASSWORD")
    try:
        with pytest.raises(AssertionError, match=r"copy \.env\.example to \.env and set POSTGRES_PASSWORD there"):
            project.compose("config")
    finally:
        project.settings["POSTGRES_PASSWORD"] = password
    assert example_settings()["POSTGRES_PASSWORD"] == "", "no password that everybody knows"


def test_starts_with_three_workers_on_loopback_only(project: Project) -> None:
    project.up()
    assert len(project.containers("worker")) == 3
    ports = project.engine.docker("ps", "--format", "{{.Ports}}", "--filter", f"name={project.name}")
    published = [each for line in ports.splitlines() for each in line.split(", ") if "->" in each]
    assert len(published) == 2
    assert all(each.startswith("127.0.0.1:") for each in published), published
    project.wait("the workers to be seen", lambda: project.get("/stats")["workers"] == 3)


def test_containers_have_limits_and_rights_that_are_few(project: Project) -> None:
    for service in ("api", "worker"):
        template = (
            "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.ReadonlyRootfs}} {{.Config.User}} "
            '{{.HostConfig.CapDrop}} {{index .HostConfig.LogConfig.Config "max-size"}} {{.Config.StopTimeout}}'
        )
        containers = project.containers(service)
        assert containers
        for container in containers:
            memory, cpus, *rest = project.engine.docker("inspect", "--format", template, container).split()
            assert int(memory) > 0
            assert int(cpus) > 0
            grace = int(project.settings["TASKGATE_GRACE_SECONDS"])
            assert rest[:4] == ["true", "10001:10001", "[ALL]", "10m"]
            assert int(rest[4]) > grace, "the engine must not kill a worker that still drains"


def test_the_limit_is_changed_live_and_outlives_an_up(fresh: Project) -> None:
    set_limit = ["exec", "-T", "api", "taskgate", "limits", "set"]
    fresh.compose(*set_limit, "7")
    assert fresh.get("/stats")["limit"] == 7
    fresh.up()
    assert fresh.get("/stats")["limit"] == 7, "MAX_CONCURRENT_TASKS did not change, so migrate leaves the limit alone"
    fresh.compose(*set_limit, str(LIMIT))
    assert fresh.get("/stats")["limit"] == LIMIT


def test_scale_3_20_0_20_with_2000_tasks(fresh: Project) -> None:
    total = 2000
    fresh.submit(total, "scale")
    fresh.up(3)
    fresh.wait("three workers to work", lambda: fresh.provider()["requests"] >= 30)
    assert fresh.provider()["max_in_flight"] == 3

    fresh.up(LIMIT)
    fresh.wait("more than three to work", lambda: fresh.provider()["max_in_flight"] > 3)

    fresh.up(0)
    assert fresh.containers("worker") == []
    paused = fresh.counts()
    assert paused.get("running", 0) == 0, "every worker drained before it ended"
    assert paused["pending"] > 0, "the queue must be stopped before it is empty, for this test to tell anything"
    requests = fresh.provider()["requests"]
    assert requests == paused["completed"]
    (late,) = fresh.submit(1, "accepted without a worker")
    assert fresh.get(f"/tasks/{late}?wait=2")["status"] == "pending"
    assert fresh.provider()["requests"] == requests

    fresh.up(LIMIT)
    fresh.wait_until_done(total + 1)
    seen = fresh.provider()
    assert seen["max_in_flight"] <= LIMIT
    assert seen["requests"] == total + 1, "each task was paid once"


def test_killed_workers_lose_nothing(fresh: Project) -> None:
    total = 400
    fresh.up(LIMIT)
    fresh.submit(total, "[[latency:0.5]] kill")
    fresh.wait("the fleet to be at work", lambda: fresh.provider()["in_flight"] >= 10)
    victims = fresh.containers("worker")[: LIMIT // 3 + 1]
    fresh.engine.docker("kill", *victims)
    assert len(fresh.containers("worker")) == LIMIT - len(victims)
    fresh.wait_until_done(total)
    seen = fresh.provider()
    assert seen["max_in_flight"] <= LIMIT
    assert seen["closed_by_client"] > 0, "no killed worker was at work, so nothing was shown"
    assert seen["requests"] <= total + len(victims), "only what the victims held was asked again"


def test_down_and_up_lose_nothing(fresh: Project) -> None:
    total = 300
    fresh.up(LIMIT)
    fresh.submit(total, "[[latency:1]] down")
    fresh.wait("some to be done", lambda: fresh.counts().get("completed", 0) >= 10)
    fresh.down()
    fresh.up(0)
    counts = fresh.counts()
    assert sum(counts.values()) == total
    assert "running" not in counts, "the database must outlive the workers, which write their results while they drain"
    assert counts["pending"] > 0, "the fleet must be stopped before the queue is empty, for this test to tell anything"
    assert counts["completed"] >= 10
    fresh.up(LIMIT)
    fresh.wait_until_done(total)
    assert fresh.provider()["max_in_flight"] <= LIMIT


@pytest.mark.parametrize(("workers", "slots"), [(20, 1), (4, 5)])
def test_shapes_of_the_fleet_give_the_same(fresh: Project, workers: int, slots: int) -> None:
    fresh.settings["TASKGATE_SLOTS"] = str(slots)
    try:
        fresh.up(workers)
        fresh.wait("the workers to be seen", lambda: fresh.get("/stats")["slots"] == LIMIT)
        # long calls: all slots are filled before the first one ends, also on a slow machine
        fresh.submit(40, "[[latency:5]] shape")
        fresh.wait_until_done(40)
        seen = fresh.provider()
        assert (seen["max_in_flight"], seen["requests"]) == (LIMIT, 40)
        assert fresh.sql("SELECT DISTINCT attempts FROM tasks") == ["1"]
    finally:
        fresh.settings["TASKGATE_SLOTS"] = "1"


def test_twenty_idle_workers_are_small(fresh: Project, record_property: Callable[[str, object], None]) -> None:
    fresh.up(LIMIT)
    fresh.submit(100, "warm up")
    fresh.wait_until_done(100)
    fresh.wait("memory to be given back", lambda: sum(fresh.memory_mib("worker")) <= IDLE_FLEET_MIB, seconds=60)
    used = fresh.memory_mib("worker")
    assert len(used) == LIMIT
    record_property("idle_fleet_mib", round(sum(used), 1))
    print(f"20 idle workers: {sum(used):.1f} MiB together, {min(used):.1f} to {max(used):.1f} each")


def test_secrets_from_files_and_the_python_worker(fresh: Project) -> None:
    folder = fresh.folder / "secrets"
    folder.mkdir(exist_ok=True)
    password = fresh.settings["POSTGRES_PASSWORD"]
    values = {
        "postgres_password": password,
        "database_url": f"postgresql://taskgate:{password}@postgres:5432/taskgate",
        "openai_api_key": "from-a-file",
    }
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n", encoding="utf-8")
        (folder / name).chmod(0o644)
    # the same file, with this test's folder in place of the repository's
    override = fresh.folder / "compose.secrets.yaml"
    override.write_text(SECRETS.read_text(encoding="utf-8").replace("./secrets/", f"{folder}/"), encoding="utf-8")
    fresh.files.append(override)
    fresh.settings |= {"POSTGRES_PASSWORD": "see-secrets", "COMPOSE_PROFILES": "fake-provider,python-worker"}
    fresh.settings["TASKGATE_PYTHON_SLOTS"] = str(LIMIT // 2)  # room for the Go workers below the limit
    try:
        fresh.up(2)
        (python_worker,) = fresh.containers("python-worker")
        for container in [*fresh.containers("api"), *fresh.containers("worker"), python_worker]:
            assert password not in fresh.engine.docker("inspect", container)
        fresh.wait("the workers to be seen", lambda: fresh.get("/stats")["workers"] == 3)
        fresh.submit(200, "[[latency:0.5]] secrets")
        fresh.wait_until_done(200)
        assert fresh.provider()["max_in_flight"] <= LIMIT
        languages = fresh.sql("SELECT DISTINCT language FROM tasks JOIN workers USING (worker_id) ORDER BY 1")
        assert languages == ["go", "python"], "both kinds of worker shared the work"
    finally:
        fresh.settings |= {"POSTGRES_PASSWORD": password, "COMPOSE_PROFILES": "fake-provider"}
