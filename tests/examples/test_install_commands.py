"""No index has the package: install commands name a checkout, a wheel, or another project's package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("*.md", "docs/*.md", "docker/*", "examples/**/*.md", "examples/**/*.py", "scaler/**/*.py")
_BY_NAME = re.compile(
    r"""pip install\b[^\n`]*['" ](?:scaler|scaler-compute)(?=[=<>~['"`\s]|$)|\bscaler(?:-compute)?\[[a-z,]+\]"""
)


def test_install_commands_use_only_names_that_an_index_has() -> None:
    texts = {path: path.read_text("utf-8") for place in PLACES for path in ROOT.glob(place) if path.is_file()}
    assert ROOT / "docs/guide.md" in texts
    assert {str(path): found for path, text in texts.items() if (found := _BY_NAME.findall(text))} == {}
