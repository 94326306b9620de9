"""Requirements of a worker manager: installed once per host, by pip, or by uv if available."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.config.load import model_of
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import ConfigError
from scaler.extensions.environment.installer import Listed, packed, provide
from tests.waiting import until

WAIT_SECONDS = 120.0
"""pip takes seconds to start, more on a busy machine."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where packages are cached. Installers look for packages nowhere else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache" / "scaler" / "packages"


def wheel(folder: Path, version: str) -> Path:
    """Create a wheel of a module that no other package has, with a program and a .pth file."""
    path = folder / f"tabulator-{version}-py3-none-any.whl"
    info = f"tabulator-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tabulator.py", f"VERSION = {version!r}\ndef main(): print(VERSION)\n")
        archive.writestr("tabulator.pth", "import os; os.environ['TABULATOR'] = 'started'\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntabulate = tabulator:main\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tabulator\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def imported(_: int = 0) -> tuple[str, str]:
    import tabulator  # type: ignore[import-not-found]  # noqa: PLC0415 (in the task)

    return tabulator.VERSION, tabulator.__file__


def provided(*requirements: str, say: Callable[[str], object] = bool) -> Path:
    folder, lock = provide(packed(Listed(requirements)), "requirements", say)
    os.close(lock)
    return folder


def version_of_a_child() -> str:
    import subprocess  # noqa: PLC0415 (in the task)

    command = (sys.executable, "-c", "import tabulator; print(tabulator.VERSION)")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def output_of_the_program() -> tuple[str, str | None]:
    import os  # noqa: PLC0415 (in the task)
    import subprocess  # noqa: PLC0415

    return subprocess.check_output("tabulate", text=True).strip(), os.environ.get("TABULATOR")


def test_workers_import_their_managers_requirements_from_one_folder(tmp_path: Path, cache: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"# ours\n{wheel(tmp_path, '1.0')}  # a wheel\n\n")
    with (
        SchedulerClusterCombo(n_workers=2, requirements=(f"@{listed}",)) as combo,
        Client(combo.get_address()) as client,
    ):
        found = {client.submit(imported, number).result(WAIT_SECONDS) for number in range(20)}
        [folder] = [each for each in cache.iterdir() if each.is_dir()]
        assert found == {("1.0", str(folder / "tabulator.py"))}
        assert client.submit(version_of_a_child).result(WAIT_SECONDS) == "1.0"
        assert client.submit(output_of_the_program).result(WAIT_SECONDS) == ("1.0", "started")


def test_pip_installs_despite_settings_for_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "REQUIRE_VIRTUALENV", "DRY_RUN"):
        monkeypatch.setenv(f"PIP_{name}", "1")
    for name in ("PREFIX", "ROOT"):
        monkeypatch.setenv(f"PIP_{name}", str(tmp_path / name))
    assert (provided(str(wheel(tmp_path, "1.0"))) / "tabulator.py").exists()


def test_requirement_that_excludes_a_package_of_scaler_is_named(tmp_path: Path) -> None:
    version = importlib.metadata.version("cloudpickle")
    with pytest.raises(ConfigError, match=rf"; cloudpickle<1 is in conflict with Scaler's own cloudpickle=={version}"):
        provided(str(wheel(tmp_path, "1.0")), "cloudpickle<1")


def test_unit_shows_what_it_installs_until_its_worker_joins(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    wait = f"while ! test -e {flag}; do sleep 0.05; done"
    uv(tmp_path, f'{wait}; while test "$1" != --target; do shift; done; mkdir -p "$2"; echo "A = 5" >"$2/tabulator.py"')

    def number() -> int:
        return int(__import__("tabulator").A)

    with SchedulerClusterCombo(n_workers=1, requirements=("b",)) as combo, Client(combo.get_address()) as client:
        future = client.submit(number)
        assert until(lambda: "installs requirements (b)" in client.explain(future), WAIT_SECONDS, pause_seconds=0.05)
        flag.touch()
        assert future.result(WAIT_SECONDS) == 5


def test_failed_installation_is_the_reason_of_the_units(tmp_path: Path, cache: Path) -> None:
    missing = str(tmp_path / "tabulator-9-py3-none-any.whl")
    with SchedulerClusterCombo(n_workers=1, requirements=(missing,)) as combo, Client(combo.get_address()) as client:
        future = client.submit(imported)
        text = until(
            lambda: "cannot be installed" in (text := client.explain(future)) and text, WAIT_SECONDS, pause_seconds=0.1
        )
        assert missing in text
        future.cancel()
    assert not [each for each in cache.iterdir() if each.is_dir()]


def uv(folder: Path, script: str) -> None:
    """Install a fake uv, which records its arguments."""
    path = folder / "home" / ".local" / "bin" / "uv"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)


@pytest.mark.full
def test_uv_installs_once_for_workers_that_start_together(tmp_path: Path, cache: Path) -> None:
    uv(tmp_path, 'while test "$1" != --target; do shift; done; mkdir -p "$2"; touch "$2/ready.py"')
    said: list[str] = []
    folders: set[Path] = set()
    threads = [
        threading.Thread(target=lambda: folders.add(provided("tabulator>=1,<2", "b", say=said.append)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [folder] = folders
    assert (folder / "ready.py").exists()
    [call] = (tmp_path / "calls").read_text().splitlines()
    files = f"--target {folder}.new -r {folder}.new/.requirements.txt --constraint {folder}.new/.constraints.txt"
    assert call == f"pip install -q --python {sys.executable} {files}"
    assert (folder / ".requirements.txt").read_text() == "tabulator>=1,<2\nb\n"
    assert said.count("installs requirements (tabulator>=1,<2, b)") == 1
    assert provided("b", "tabulator>=1,<2") == folder
    assert provided("c") != folder
    assert not list(cache.glob("*.new"))


@pytest.mark.parametrize(
    ("requirements", "text"),
    [(("@missing.txt",), "cannot read 'missing.txt'"), (("--index-url=x",), "installer options are not allowed")],
)
def test_rejects_unusable_lists_at_startup(requirements: tuple[str, ...], text: str) -> None:
    values = {"type": "baremetal_native", "scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": "m"}
    with pytest.raises(ConfigError, match=text):
        model_of(WorkerManagerConfig, {**values, "requirements": requirements})
