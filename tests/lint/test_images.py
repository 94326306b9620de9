"""The images in docker/ consist of existing files, with extras that the package has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_image_copies_existing_files(image: Path) -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", image.read_text(), re.MULTILINE)
    assert copied
    for files in copied:
        assert all((ROOT / name).exists() for name in files.split())


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_image_installs_extras_of_the_package(image: Path) -> None:
    text = image.read_text()
    found = re.search(r'^ARG EXTRAS="([^"]+)"$', text, re.MULTILINE)
    named = found[1].split(",") if found else re.findall(r"wheel ([a-z ]+) >", text)[0].split()
    assert set(named) <= EXTRAS.keys()
