"""The wheel of the running package: a remote machine installs the code that runs here."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import scaler
from scaler.extras import DISTRIBUTION
from scaler.worker_manager.wheel import build_wheel

PACKAGE = Path(scaler.__file__).parent


def installed(path: Path, target: Path) -> Path:
    """Install a wheel without its dependencies and return the folder."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, path], check=True)
    return target


def run_with(site: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site, env=environment, check=True, capture_output=True, text=True).stdout


def test_installed_wheel_has_every_package_file_and_command(tmp_path: Path) -> None:
    site = installed(build_wheel(tmp_path), tmp_path / "site")

    assert run_with(site, "-c", "import scaler; print(scaler.__file__)").strip() == f"{site}/scaler/__init__.py"
    assert run_with(site, "bin/scaler", "--version") == run_with(site, "-m", "scaler", "--version")
    sources = {path: data for path, data in contents(PACKAGE).items() if path.parts[0] != "testing"}
    assert contents(site / "scaler") == sources


def contents(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder, without bytecode."""
    kept = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder): path.read_bytes() for path in kept}


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = build_wheel(tmp_path), build_wheel(tmp_path / "other")

    assert first.name == second.name == f"scaler_compute-{version(DISTRIBUTION)}-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()


def test_record_names_every_file_with_its_digest(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        own = f"scaler_compute-{version(DISTRIBUTION)}.dist-info/RECORD"
        rows = list(csv.reader(io.StringIO(archive.read(own).decode())))
        assert [row[0] for row in rows] == archive.namelist()
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={encoded}", str(len(data))), name


def test_missing_package_is_refused_with_a_remedy(tmp_path: Path) -> None:
    program = "import pathlib, scaler.worker_manager.wheel as w; w.build_wheel(pathlib.Path())"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-S", "-c", program]  # without site-packages, which has its metadata
    ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)

    assert "UsageError" in ended.stderr
    assert "not installed" in ended.stderr
    assert "`pip install -e .`" in ended.stderr


def test_build_metadata_left_in_the_checkout_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = build_wheel(tmp_path).read_bytes()
    left = tmp_path / "checkout/scaler_compute.egg-info"
    left.mkdir(parents=True)
    (left / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: scaler-compute\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(left.parent)
    assert version(DISTRIBUTION) == "0.0.1", "the leftover metadata is found first"
    assert build_wheel(tmp_path).read_bytes() == expected
