"""The page's files have their content types, and are reloaded after changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scaler.monitor.web.server import CONTENT_TYPES, STATIC, Files
from tests.unit.monitor.web_rig import ask

FILES = {
    "of an extension" if folder != STATIC else path.suffix: (folder, path)
    for folder in map(Path, Files().all_directories)
    for path in folder.rglob("*")
    if path.is_file()
}
"""One file of each type."""


@pytest.mark.parametrize(("folder", "path"), FILES.values(), ids=FILES.keys())
def test_every_file_has_its_content_type_and_is_revalidated(folder: Path, path: Path) -> None:
    name = f"/{path.relative_to(folder)}"
    reply = ask(name)
    assert reply.status_code == 200
    assert reply.headers["cache-control"] == "no-cache"
    if path.suffix in CONTENT_TYPES:
        assert reply.headers["content-type"].startswith(CONTENT_TYPES[path.suffix])
    unchanged = ask(name, headers={"if-none-match": reply.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["cache-control"] == "no-cache"


def test_page_is_the_root_and_has_no_inline_script_or_style() -> None:
    reply = ask("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in reply.text
    assert "<style" not in reply.text
    assert not re.search(r"\s(style|on[a-z]+)=", reply.text)


def test_page_gets_its_table_columns_from_the_schema() -> None:
    reply = ask("/schema.js")
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    schema = json.loads(reply.text.splitlines()[0].removeprefix("export const SCHEMA = ").removesuffix(";"))
    assert set(schema) == {
        "tasks",
        "workers",
        "processors",
        "managers",
        "clients",
        "functions",
        "waiting",
        "stores",
        "pairs",
        "objects",
        "links",
        "calls",
        "costs",
        "failures",
        "decisions",
        "incidents",
        "audit",
        "shares",
        "limits",
        "times",
        "logs",
    }
    formats = re.search(r"const FORMATS = \{(.*)\};", (STATIC / "table.js").read_text())
    assert formats
    for column in (column for columns in schema.values() for column in columns):
        assert re.search(rf"\b{column['unit']}\b", formats[1]), column
