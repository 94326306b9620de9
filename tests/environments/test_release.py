"""`.ci/release` builds the version that a tag names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".ci/release")
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(checkout: Path, *arguments: str) -> None:
    subprocess.run(["git", *AUTHOR, *arguments], cwd=checkout, check=True, capture_output=True)


def release(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = ["env", f"PYTHON={sys.executable}", str(checkout / ".ci/release")]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    shutil.copytree(ROOT / "scaler", tmp_path / "scaler", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "testing", tmp_path / "testing", symlinks=True)
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def test_tag_sets_the_version_of_wheels_and_source_archives(checkout: Path) -> None:
    changes = checkout / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## [Unreleased]", "## [9.8.7] - 2030-01-01", 1))
    git(checkout, "commit", "--quiet", "--all", "--message", "release")
    git(checkout, "tag", "v9.8.7")

    done = release(checkout)

    assert done.returncode == 0, done.stderr
    names = {path.name for path in (checkout / "dist").iterdir()}
    assert names == {
        f"{name}-9.8.7{kind}"
        for name in ("scaler_compute", "scaler_compute_testing")
        for kind in ("-py3-none-any.whl", ".tar.gz")
    }
    packed = {}
    for name in ("scaler_compute", "scaler_compute_testing"):
        with zipfile.ZipFile(checkout / f"dist/{name}-9.8.7-py3-none-any.whl") as wheel:
            packed[name] = {each for each in wheel.namelist() if each.startswith("scaler/")}
            if name == "scaler_compute":
                assert wheel.read("scaler/_version.py") == b'__version__ = "9.8.7"\n'
    sources = {str(path.relative_to(checkout)) for path in (checkout / "scaler").rglob("*") if path.is_file()}
    assert packed["scaler_compute_testing"] == {path for path in sources if path.startswith("scaler/testing/")}
    assert packed["scaler_compute"] == sources - packed["scaler_compute_testing"]


def test_rejects_a_release_without_tag_or_changelog_section(checkout: Path) -> None:
    untagged = release(checkout)
    assert (untagged.returncode, "git tag -a v1.2.3" in untagged.stderr) == (1, True)
    git(checkout, "tag", "v9.8.7")
    undescribed = release(checkout)
    assert (undescribed.returncode, "no section '## [9.8.7]'" in undescribed.stderr) == (1, True)
    assert not (checkout / "dist").exists()
