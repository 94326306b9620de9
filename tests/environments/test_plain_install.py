"""The package as installed by `pip install` without extras: exactly the needs of the plain components."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import venv
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scaler.cluster.supervisor import ReservedPorts
from scaler.extras import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_PACKAGES = 21
MOST_BYTES = 60_000_000
PACKAGING = {"pip", "setuptools"}
"""Initial packages of an environment; before Python 3.12 also setuptools."""
PACKAGING_BYTES = 26_000_000
"""Both packages, as installed by Python 3.11."""

PROGRAM = """
from scaler import Client, ScalerExecutor, SchedulerClusterCombo
if __name__ == "__main__":
    with SchedulerClusterCombo(n_workers=1) as combo:
        with Client(combo.get_address()) as client:
            print(client.map(abs, [-1, -2], progress=True))
        with ScalerExecutor(address=combo.get_address()) as executor:
            print(executor.submit(abs, -3).result())
"""


def required(names: list[str], found: set[str] | None = None) -> set[str]:
    """Return the packages that these requirements install here, without extras."""
    found = set() if found is None else found
    for requirement in map(Requirement, names):
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            required(distribution(name).requires or [], found)
    return found


PLAIN = sorted(required(PROJECT["dependencies"]))


def link_packages(site: Path) -> None:
    """Link every package of a plain install into an environment, and nothing else."""
    for name in PLAIN:
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    (site / "scaler").symlink_to(ROOT / "scaler")


def install_wheel(site: Path) -> None:
    """Build the wheel with pip and install it, like a user."""
    python = site.parents[2] / "bin/python"
    source = site.parents[2] / "source"
    source.mkdir()
    shutil.copytree(ROOT / "scaler", source / "scaler", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([python, "-m", "pip", "install", "--quiet", source], check=True, timeout=300)


@pytest.fixture(scope="module", params=[link_packages, pytest.param(install_wheel, marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, soak: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package folder of an environment with a plain install."""
    install: Callable[[Path], None] = request.param
    if install is install_wheel and not soak:
        pytest.skip("takes half a minute and an index of packages: `make soak` runs it")
    home = tmp_path_factory.mktemp("plain")
    venv.create(home, symlinks=True, with_pip=install is install_wheel)
    (found,) = (home / "lib").glob("python3*/site-packages")
    install(found)
    return found


@pytest.fixture(scope="module")
def python(site: Path) -> str:
    return str(site.parents[2] / "bin/python")


def run(*command: str) -> tuple[int, str, str]:
    # Neither the source of this checkout nor variables that lead to it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def size_bytes(package: Distribution) -> int:
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_plain_install_is_small(site: Path) -> None:
    installed = {canonicalize_name(each.metadata["Name"]) for each in map(Distribution.at, site.glob("*.dist-info"))}
    assert installed - PACKAGING - {DISTRIBUTION} == set(PLAIN)
    assert len({*PLAIN, *PACKAGING, DISTRIBUTION}) <= MOST_PACKAGES
    # A checkout may also have been used by other interpreters.
    installed_files = (
        path
        for path in (ROOT / "scaler").rglob("*")
        if path.suffix != ".pyc" or f".{sys.implementation.cache_tag}" in path.suffixes
    )
    source = sum(path.stat().st_size for path in installed_files if path.is_file())
    assert sum(map(size_bytes, map(distribution, PLAIN))) + source + PACKAGING_BYTES < MOST_BYTES
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MOST_BYTES


def test_client_executor_combo_and_workers_need_no_extra(python: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    code, printed, errors = run(python, str(tmp_path / "program.py"))
    assert (code, printed) == (0, "[1, 2]\n3\n"), errors


def test_launcher_page_metrics_and_questions_need_no_extra(python: str, tmp_path: Path, ports: ReservedPorts) -> None:
    file = tmp_path / "stack.toml"
    file.write_text(
        f'[scheduler]\nbind_address = "{ports.address()}"\n[webui]\nweb_port = 0\n'
        '[[worker_manager]]\ntype = "baremetal_native"\nworker_manager_id = "here"\nmax_task_concurrency = 1\n'
    )
    launcher = subprocess.Popen(
        [python, "-m", "scaler.cli", "scaler", str(file)], stdout=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert launcher.stdout is not None
        page = next(
            found[1] for line in launcher.stdout if (found := re.search(r"connect with .* web page (\S+)", line))
        )
        for path in ("", "/metrics"):
            with urllib.request.urlopen(page + path, timeout=10) as answer:
                assert answer.status == 200
        for command in (
            ("scaler", "explain", "00" * 16),
            ("scaler", "costs"),
            ("scaler", "objects"),
            ("scaler_top", "--once"),
            ("scaler_top", "--json"),
        ):
            code, _, errors = run(python, "-m", "scaler.cli", *command, ports.address(2))
            assert (code, errors) == (0, ""), command
    finally:
        launcher.terminate()
        assert launcher.wait(20) == 0
        if launcher.stdout is not None:
            launcher.stdout.close()


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("top", ["scaler_top"]),
        ("top", ["scaler_top", "tcp://127.0.0.1:1"]),
        ("uvloop", ["scaler_scheduler", "tcp://127.0.0.1:0", "--event-loop", "uvloop"]),
        ("uvloop", ["scaler_cluster", "tcp://127.0.0.1:1", "--event-loop", "uvloop"]),
        (
            "aws",
            ["scaler_worker_manager", "aws_hpc", "setup", "--job-queue=a", "--job-definition=b", "--s3-bucket=our"],
        ),
        (
            "aws",
            ["scaler_worker_manager", "aws_raw_ecs", "tcp://127.0.0.1:1", "-wmi", "a", "--ecs-subnets", "subnet-1"],
        ),
        ("kubernetes", ["scaler_worker_manager", "kubernetes", "tcp://127.0.0.1:1", "-wmi", "a"]),
        ("aws", ["scaler", "FILE"]),
    ],
)
def test_missing_extra_is_one_line_with_the_install_command(
    python: str, extra: str, arguments: list[str], tmp_path: Path
) -> None:
    assert extra in PROJECT["optional-dependencies"]
    file = tmp_path / "clouds.toml"
    file.write_text(
        '[scheduler]\nbind_address = "tcp://127.0.0.1:8516"\n[[worker_manager]]\ntype = "aws_raw_ecs"\n'
        'worker_manager_id = "ecs"\necs_subnets = ["subnet-1"]\n'
    )
    arguments = [str(file) if argument == "FILE" else argument for argument in arguments]
    code, printed, errors = run(python, "-m", "scaler.cli", *arguments)
    assert (code, printed, errors.count("\n")) == (2, "", 1), errors
    library = Requirement(PROJECT["optional-dependencies"][extra][0]).name
    assert re.search(rf"which is not installed: pip install '?{library}\b", errors)


def test_help_and_settings_of_every_type_need_no_extra(python: str) -> None:
    for kind in ("aws_raw_ecs", "aws_hpc"):
        code, printed, errors = run(python, "-m", "scaler.cli", "scaler_worker_manager", kind, "-h")
        assert (code, errors) == (0, "")
        assert "--aws-region" in printed
