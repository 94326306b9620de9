"""Installs an external extension into a folder, as pip does with a pure package."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"


def install(package: Path, folder: Path) -> Path:
    """Copy the package of a project to a folder, add its entry points, and return the folder."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    shutil.copytree(package / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_entry_points(folder, name, project["entry-points"]["scaler.extensions"])
    return folder


def write_entry_points(folder: Path, name: str, references: dict[str, str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {reference}\n" for key, reference in references.items())
    (info / "entry_points.txt").write_text(f"[scaler.extensions]\n{lines}")
