"""Draws the diagrams in docs/images/diagrams.toml as SVG files that follow the reader's light or dark theme."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parents[1] / "images"
_STYLE = """\
text { font: 13px sans-serif; fill: #1f2937; text-anchor: middle } .title { font-weight: bold; font-size: 15px }
.box { fill: #f3f4f6; stroke: #6b7280 } .strong { fill: #e0e7ff; stroke: #4f46e5 }
.arrow { fill: none; stroke: #6b7280 } .head { fill: #6b7280 } .label { fill: #4b5563; font-size: 12px }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb } .box { fill: #1f2937; stroke: #9ca3af } .strong { fill: #312e81; stroke: #a5b4fc }
  .arrow { stroke: #9ca3af } .head { fill: #9ca3af } .label { fill: #d1d5db }
}"""
_HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
    ' orient="auto-start-reverse">'
    '<path class="head" d="M0 0 8 4 0 8z"/></marker>'
)

Point = tuple[float, float]


def drawn(diagram: dict[str, Any]) -> str:
    """Return the SVG document of one diagram."""
    width, height = diagram["size"]
    boxes = diagram["boxes"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(diagram['title'])}</title>",
        f"<style>\n{_STYLE}\n</style>",
        f"<defs>{_HEAD}</defs>",
        *(_box(box) for box in boxes.values()),
        *(_arrow(arrow, boxes) for arrow in diagram["arrows"].values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: dict[str, Any]) -> str:
    x, y, width, height = box["at"]
    middle, style = x + width / 2, "box strong" if box.get("strong") else "box"
    return (
        f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        f'<text class="title" x="{middle:g}" y="{y + height / 2 - 4:g}">{escape(box["title"])}</text>'
        f'<text x="{middle:g}" y="{y + height / 2 + 15:g}">{escape(box["text"])}</text>'
    )


def _arrow(arrow: dict[str, Any], boxes: dict[str, Any]) -> str:
    (start, side), (end, other) = _end(arrow["from"], boxes), _end(arrow["to"], boxes)
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    path = f"M{_at(start)} L{_at(end)}"
    if side == other:  # around the outside of both boxes
        if side == "bottom":
            low = max(start[1], end[1]) + 35
            path, middle = f"M{_at(start)} V{low:g} H{end[0]:g} V{end[1]:g}", (middle[0], low)
        else:
            far = max(start[0], end[0]) + 25 if side == "right" else min(start[0], end[0]) - 12
            path, middle = f"M{_at(start)} H{far:g} V{end[1]:g} H{end[0]:g}", ((start[0] + far) / 2, start[1])
    beginning = ' marker-start="url(#head)"' if arrow.get("both") else ""
    line = f'<path class="arrow" d="{path}" marker-end="url(#head)"{beginning}/>'
    if not arrow.get("text"):
        return line
    if start[0] == end[0]:
        place = f'x="{middle[0] + 8:g}" y="{middle[1] + 4:g}" style="text-anchor: start"'
    else:
        place = f'x="{middle[0]:g}" y="{middle[1] - 6:g}"'
    return f'{line}<text class="label" {place}>{escape(arrow["text"])}</text>'


def _end(name: str, boxes: dict[str, Any]) -> tuple[Point, str]:
    """Return a point on the side of a box, and the side: `box.side`, or `box.side@fraction` of its length."""
    box, _, rest = name.partition(".")
    side, _, fraction = rest.partition("@")
    x, y, width, height = boxes[box]["at"]
    along = float(fraction or 0.5)
    if side in ("left", "right"):
        return (x + width * (side == "right"), y + height * along), side
    return (x + width * along, y + height * (side == "bottom")), side


def _at(point: Point) -> str:
    return f"{point[0]:g} {point[1]:g}"


def main() -> None:
    for name, diagram in tomllib.loads((IMAGES / "diagrams.toml").read_text()).items():
        (IMAGES / f"{name}.svg").write_text(drawn(diagram))


if __name__ == "__main__":
    main()
