"""Writes the site's sources to build/pages: docs/, generated pages, and pictures.

Links to files elsewhere in the repository lead to copies of these files in the site.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import shutil
from contextlib import redirect_stdout, suppress
from pathlib import Path

from scaler.cli import COMMANDS, SUBCOMMANDS, run_command

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
FILES = "files/"
"""The site's folder for copies of files outside docs/."""
_OWN_PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".Dockerfile": "dockerfile"}
HELP_COLUMNS = "88"

API = {
    "The client": (
        "scaler.Client",
        "scaler.extensions.maps.calls.MapCalls",
        "scaler.extensions.graphs.calls.GraphCalls",
        "scaler.extensions.queries.client.Queries",
        "scaler.extensions.environment.upload.UploadCalls",
        "scaler.extensions.data_plane.client.CopyCalls",
        "scaler.ScalerFuture",
        "scaler.SchedulerClusterCombo",
    ),
    "asyncio": (
        "scaler.AsyncClient",
        "scaler.extensions.maps.asynchronous.AsyncMapCalls",
        "scaler.extensions.graphs.calls.AsyncGraphCalls",
    ),
    "Executors and pools": ("scaler.ScalerExecutor", "scaler.Pool"),
    "Other libraries": ("scaler.dask.get", "scaler.joblib.ScalerBackend"),
    "Options": ("scaler.client.options.OptionKeywords", "scaler.Exponential", "scaler.client.task_calls.ClientView"),
    "Serializers": ("scaler.Serializer",),
    "Errors": ("scaler.errors",),
    "Policies": ("scaler.policy.view", "scaler.policy.simple", "scaler.policy.target", "scaler.policy.waterfall"),
    "Worker managers": ("scaler.worker_manager.kit",),
    "Testing": ("scaler.testing.backends", "scaler.testing.scaling"),
}
"""Modules and classes on the page of the Python API, by heading."""


def write() -> None:
    """Write all pages, with links that work in the site, and pictures. Removes other files there."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("site"))
    pages = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    pages |= {"commands.md": commands_page(), "api.md": api_page()}
    pages |= {page: (ROOT / source).read_text() for source, page in _OWN_PAGES.items()}
    pages |= {page: _shown(source) for source, page in _linked().items()}
    for uri, text in pages.items():
        path = PAGES / uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_with_targets(uri, text))


def _with_targets(uri: str, text: str) -> str:
    return _LINK.sub(lambda match: f"{match[1]}{_target(uri, match[2])}{match[3]}", text)


def commands_page() -> str:
    """Return the page with the -h output of each command."""
    parts = ["# Commands\n\nThe `-h` output of each command. [Settings](settings.md) explains the keys in detail.\n"]
    for name in (*COMMANDS, *SUBCOMMANDS):
        words = name.split()
        parts.append(f"\n## {name}\n\n```text\n{_help(words[0], [*words[1:], '-h'])}```\n")
    return "".join(parts)


def api_page() -> str:
    """Return the page that mkdocstrings fills from docstrings."""
    parts = ["# Python API\n"]
    for title, names in API.items():
        parts += [f"\n## {title}\n", *(f"\n::: {name}\n{_options_of(name)}" for name in names)]
    return "".join(parts)


def _options_of(name: str) -> str:
    """Return the option that shows a class's inherited methods."""
    is_class = name.rpartition(".")[2][0].isupper() and not name.startswith("scaler.extensions.")
    return "    options:\n      inherited_members: true\n" if is_class else ""


def _help(command: str, arguments: list[str]) -> str:
    os.environ["COLUMNS"] = HELP_COLUMNS
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        run_command(command, arguments)
    return printed.getvalue()


def _source(uri: str) -> str:
    """Return the repository path of a page's source file."""
    own = {page: source for source, page in _OWN_PAGES.items()}
    if uri.startswith(FILES):
        return uri.removeprefix(FILES).removesuffix(".md")
    return own.get(uri, f"docs/{uri}")


def _target(uri: str, link: str) -> str:
    """Return the site's form of a link on a page. link: path relative to the page's source."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_source(uri)), link))
    if path.startswith("docs/"):
        there = path.removeprefix("docs/")
    elif (ROOT / path).is_file():
        there = _OWN_PAGES.get(path, f"{FILES}{path}.md")
    else:
        return link
    return posixpath.relpath(there, posixpath.dirname(uri) or ".")


def _linked() -> dict[str, str]:
    """Return files outside docs/ to which pages link, with the pages that show them."""
    sources = [*_OWN_PAGES, *(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))]
    found: dict[str, str] = {}
    while sources:
        source = sources.pop()
        for _, link, _ in _LINK.findall((ROOT / source).read_text()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
            if path in found or path in _OWN_PAGES or path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            found[path] = f"{FILES}{path}.md"
            if path.endswith(".md"):
                sources.append(path)
    return found


def _shown(source: str) -> str:
    text = (ROOT / source).read_text()
    if source.endswith(".md"):
        return text
    language = _LANGUAGES.get(Path(source).suffix, "text")
    return f"# {source}\n\n````{language}\n{text}\n````\n"


if __name__ == "__main__":
    write()
