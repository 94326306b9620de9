"""The web page with its data as one HTML file that opens without a server.

The file contains the page's own scripts, as modules in an import map, and the API answers that its views request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable
from html import escape
from typing import Any

from scaler._version import __version__
from scaler.errors import ScalerError
from scaler.monitor.asking import Asking
from scaler.monitor.model import added_keys
from scaler.monitor.rows import View
from scaler.monitor.tables import task_view
from scaler.monitor.web.api import ROUTES
from scaler.monitor.web.delta import DeltaEncoder
from scaler.monitor.web.files import MADE, STATIC, folders
from scaler.monitor.web.routes import Query, Source
from scaler.monitor.web.views import dump
from scaler.protocol.monitor_rows import ConnectionRow

MAX_FAILURES = 1_000
MAX_TASKS = 2_000
MAX_ASKED = 50
"""Most recent failed tasks whose explanation, traceback, and output are in a report."""
MAX_LINES = 200
MAX_PROFILES = 20
"""Functions with a profile in a report, by total time."""

_IMPORT = re.compile(r'(?<=from ")\./(?:\w+/)*(\w+)\.js(?=")')
_LINK = re.compile(r'<link rel="(\w+)" href="([\w./]+)"[^>]*>\n')
_ANSWERS = {route.name: route.answer for route in ROUTES}


async def report(monitor: Asking) -> str:
    connection = ConnectionRow(
        connected=monitor.connected,
        address=monitor.address,
        incarnation=str(monitor.model.status.incarnation),
        age_seconds=0.0,
        task_rows=MAX_TASKS,
        version=__version__,
    )
    return _page(await _document(Source(monitor, lambda: connection)))


async def _document(source: Source) -> View:
    model = source.monitor.model
    tasks = {task.id: task for task in model.tasks(limit=MAX_TASKS)}
    failed = {task.id: task for task in model.tasks(state="failed", limit=MAX_FAILURES)}
    listed = {**tasks, **failed}
    asked = list(failed)[:MAX_ASKED]
    whole = {task_id: (await _answer(source, "task", {"id": task_id})).get("task") for task_id in asked}
    rows = (whole.get(task.id) or task_view(task) for task in listed.values())
    return {
        "snapshot": DeltaEncoder(model, source.connection, MAX_TASKS).snapshot(),
        "tasks": list(rows),
        "answers": {
            each.name: await _answer(source, each.name, query) for each in ROUTES if (query := each.saved(model))
        },
        "keys": {name: {row.id: key.of(row) for row in listed.values()} for name, key in added_keys().items()},
        "explained": {task_id: await _answer(source, "explain", {"id": task_id}) for task_id in asked},
        "logs": {task_id: await _answer(source, "log", {"id": task_id}) for task_id in asked},
        "network": await _answer(source, "network", {}),
        "findings": await _answer(source, "findings", {}),
        "series": await _answer(source, "series", {"name": (), "since": 0.0}),
        "history": await _history(source),
        "profiles": await _profiles(source),
        "workerLogs": {"logs": [], **await _answer(source, "logs", {"worker": "", "limit": MAX_LINES})},
    }


async def _profiles(source: Source) -> View:
    listed = await _answer(source, "profile", {"task": "", "function": ""})
    functions = listed.get("functions", [])[:MAX_PROFILES]
    each = {row["name"]: await _answer(source, "profile", {"task": "", "function": row["name"]}) for row in functions}
    return {**each, "": {"functions": functions}}


async def _history(source: Source) -> View | None:
    found: View = await _answer(source, "history", {"from": 0.0, "to": 0.0})
    return found if "points" in found else None


async def _answer(source: Source, name: str, query: Query) -> Any:
    """Return the API's answer, or an error if the scheduler does not answer or no longer has the task."""
    try:
        found = _ANSWERS[name](source, query)
        return await found if isinstance(found, Awaitable) else found
    except (ScalerError, LookupError) as error:
        return {"text": str(error), "stdout": "", "stderr": "", "cut": 0}


def _page(document: View) -> str:
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    html = _LINK.sub(lambda link: _inlined(*link.groups()), html).replace('src="icon.svg"', f'src="{_icon()}"')
    paths = [path for folder in folders() for path in folder.rglob("*.js")]
    modules = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    modules |= {name: module().decode() for name, module in MADE.items()}
    imports = {f"scaler/{name}": _data_url("text/javascript", _named(text)) for name, text in modules.items()}
    scripts = (
        f'<script type="importmap">{_inert({"imports": imports})}</script>\n'
        f'<script type="application/json" id="saved">{_inert(document)}</script>\n'
        '<script type="module">import "scaler/app";</script>'
    )
    return html.replace('<script type="module" src="app.js"></script>', scripts)


def _inlined(relation: str, path: str) -> str:
    if relation == "stylesheet":
        return f"<style>\n{(STATIC / path).read_text(encoding='utf-8')}</style>\n"
    return f'<link rel="icon" href="{escape(_icon())}">\n' if relation == "icon" else ""


def _named(module: str) -> str:
    """Rewrite imports to names of the import map, because a data URL has no base for relative paths."""
    return _IMPORT.sub(r"scaler/\1", module)


def _icon() -> str:
    return _data_url("image/svg+xml", (STATIC / "icon.svg").read_text(encoding="utf-8"))


def _data_url(content_type: str, text: str) -> str:
    return f"data:{content_type};base64,{base64.b64encode(text.encode()).decode()}"


def _inert(document: object) -> str:
    """Return JSON that cannot end its script element, regardless of the texts in it."""
    return dump(document).decode().replace("<", "\\u003c")
