"""No index has the package: what the pages tell to install is a checkout, a wheel, or what another project has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
_BY_NAME = re.compile(
    r"""pip install [^\n`]*?['" ](?:scaler|scaler-compute)(?=\[|['"`\s]|$)|\bscaler(?:-compute)?\[[a-z]+\]"""
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_installs_this_package_by_a_name_that_no_index_has_for_it(page: Path) -> None:
    assert _BY_NAME.findall(page.read_text("utf-8")) == []
