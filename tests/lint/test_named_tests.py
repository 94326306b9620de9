"""Every test named on a documentation page exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<test>\w+))?")


def test_pages_name_existing_tests() -> None:
    missing = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for found in NAMED.finditer(page.read_text()):
            file = ROOT / found["file"]
            if not file.exists() or (found["test"] and f"def {found['test']}(" not in file.read_text()):
                missing.append(f"{page.relative_to(ROOT)}: {found[0]}")
    assert not missing, "\n".join(missing)
