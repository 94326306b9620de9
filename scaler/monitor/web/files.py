"""The files of the page: its own, those of extensions, and modules generated from the extensions' declarations."""

from __future__ import annotations

import importlib
import mimetypes
import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from scaler.monitor.rows import KEYS, page_schema
from scaler.monitor.tables import ADDED
from scaler.monitor.web.views import dump
from scaler.plugins import known_extensions

STATIC = Path(__file__).parent / "static"
REVALIDATE = "no-cache"
"""Browsers may cache files but must revalidate them, because names stay the same when contents change."""
CONTENT_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Fixed, because browsers reject modules of another type and the machine's own tables may be wrong."""
for suffix, content_type in CONTENT_TYPES.items():
    mimetypes.add_type(content_type, suffix)


def folders() -> list[Path]:
    packages = [importlib.import_module(each.page.partition(":")[0]) for each in known_extensions() if each.page]
    return [STATIC, *(Path(package.__path__[0], "page") for package in packages)]


def schema_module() -> bytes:
    logs = {
        log.name: {"extension": each.name, "title": log.title, "page": log.page, "empty": log.empty}
        for each in known_extensions()
        for log in each.logs
    }
    asked = {
        found.name: {"extension": each.name, "title": found.title, "page": found.page}
        for each in known_extensions()
        for found in each.found
        if found.page
    }
    added = page_schema({table.name: table.kind for table in ADDED})
    tables = {"SCHEMA": added, "KEYS": KEYS, "LOGS": logs, "ASKED": asked}
    return b"".join(b"export const %s = %s;\n" % (name.encode(), dump(each)) for name, each in tables.items())


def extensions_module() -> bytes:
    """Return a generated module that lists the `extension` of each extension's module, with its name."""
    modules = [(each.name, each.page.partition(":")[2]) for each in known_extensions() if each.page]
    lines = [f'import {{ extension as e{place} }} from "./{module}.js";' for place, (_, module) in enumerate(modules)]
    listed = ", ".join(f'{{ name: "{name}", ...e{place} }}' for place, (name, _) in enumerate(modules))
    return "\n".join([*lines, f"export const EXTENSIONS = [{listed}];\n"]).encode()


MADE = {"schema": schema_module, "extensions": extensions_module}


def made(request: Request) -> Response:
    text = MADE[request.url.path.strip("/").removesuffix(".js")]()
    return Response(text, headers={"Cache-Control": REVALIDATE}, media_type=CONTENT_TYPES[".js"])


class Files(StaticFiles):
    def __init__(self) -> None:
        super().__init__(directory=STATIC, html=True)
        self.all_directories = [*folders()]

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = REVALIDATE
        return response
