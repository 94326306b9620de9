"""The files of the page, and the module that is made of the schema of rows."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from scaler.monitor.rows import KEYS, LOGS, page_schema
from scaler.monitor.web.views import dump

STATIC = Path(__file__).parent / "static"
REVALIDATE = "no-cache"
"""Browsers may cache files of the page, but must ask for changes: names stay the same when contents change."""
CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Not the types of the machine's own tables: browsers run no module of another type."""


def schema_module() -> bytes:
    """Return the columns of the page's tables, and the keys of their rows, as a module."""
    logs = {name: {"title": log.title, "page": log.page, "empty": log.empty} for name, log in LOGS.items()}
    tables = {"SCHEMA": page_schema(), "KEYS": KEYS, "LOGS": logs}
    return b"".join(b"export const %s = %s;\n" % (name.encode(), dump(each)) for name, each in tables.items())


def schema(_request: Request) -> Response:
    """Answer with `schema_module`."""
    return Response(schema_module(), headers={"Cache-Control": REVALIDATE}, media_type=CONTENT_TYPES[".js"])


class Files(StaticFiles):
    """The files of the page."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC, html=True)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = REVALIDATE
        kind = CONTENT_TYPES.get(Path(full_path).suffix)
        if kind is not None and "content-type" in response.headers:
            response.headers["Content-Type"] = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
        return response
