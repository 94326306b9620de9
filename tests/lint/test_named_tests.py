"""Every test and module named on a documentation page exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?:tests/)?(?P<file>(?:\w+/)+test_\w+\.py)(?:::(?P<test>\w+))?")
MODULE = re.compile(r"`([\w/]+\.py)`")


def test_pages_name_existing_tests() -> None:
    missing = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for found in NAMED.finditer(page.read_text()):
            file = ROOT / "tests" / found["file"]
            if not file.exists() or (found["test"] and f"def {found['test']}(" not in file.read_text()):
                missing.append(f"{page.relative_to(ROOT)}: {found[0]}")
    assert not missing, "\n".join(missing)


def test_design_page_names_existing_modules() -> None:
    files = [str(path) for top in ("scaler", "tests", "benchmarks") for path in (ROOT / top).rglob("*.py")]
    named = MODULE.findall((ROOT / "docs/design.md").read_text())
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
