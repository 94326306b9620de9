"""Every link of every page has a target."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

from tests.examples.blocks import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.rglob("*.md")
    if not any(
        part.startswith(".") or part in {"build", "dist", "node_modules"} for part in path.relative_to(ROOT).parts
    )
)

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose_of(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Return GitHub's anchors for the headings of a page."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in _HEADING.findall(prose_of(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


def test_every_page_link_leads_to_a_page_and_heading() -> None:
    assert {page: broken for page in PAGES if (broken := broken_links(ROOT / page))} == {}


def test_finds_a_broken_link(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    nowhere = ["gone.md", "page.md#gone", "#gone"]
    links = " ".join(f"[link]({link})" for link in ["page.md#the-page", "#it-works-twice", *nowhere])
    page.write_text(f"# The page\n\n## It `works`, twice\n\n{links}\n")
    assert broken_links(page) == nowhere
