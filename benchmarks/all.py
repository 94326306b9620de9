"""Measures all rows and prints the table, with the row that is furthest from its aim first.

python benchmarks/all.py [--short] [--systems a,b] [--rounds 3] [--rows a,b] [--write]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.frame import parser, run_rows
from benchmarks.rows import ROWS

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- the table begins -->\n", "<!-- the table ends -->\n"


def main() -> None:
    options = parser("Measure all rows of the table in benchmarks/README.md.")
    options.add_argument("--rows", help=f"rows to measure, from {','.join(ROWS)} (default: all)")
    options.add_argument("--write", action="store_true", help="update the table in benchmarks/README.md")
    arguments = options.parse_args()
    names = arguments.rows.split(",") if arguments.rows else ROWS
    for name in names:
        if name not in ROWS:
            raise SystemExit(f"no such row: {name}; there are {', '.join(ROWS)}")
    if arguments.write and (arguments.rows or arguments.short):
        raise SystemExit("--write needs the full table: omit --rows and --short")
    text = run_rows(names, arguments)
    if arguments.write:
        README.write_text(with_table(README.read_text(), text))


def with_table(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with the text between its markers replaced."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


if __name__ == "__main__":
    main()
