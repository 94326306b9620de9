"""The packages that a function imports, and differences between two environments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.extensions.environment.packages import differences, packages_of
from scaler.extensions.graphs.program import ChunkFunction


def install(folder: Path, name: str, version: str, text: str = "def use():\n    return 1\n") -> None:
    """Create a package of one module in a folder, like an installer."""
    (folder / f"{name}.py").write_text(text)
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder on the import path; its imports are removed afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def made(text: str) -> Callable[..., Any]:
    """Return the function f of a program."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(text, space)
    function: Callable[..., Any] = space["f"]
    return function


@pytest.mark.parametrize(
    "text",
    [
        "import tabler\ndef f(): return tabler.use()",
        "from tabler import use\ndef f(): return use()",
        "def f():\n    import tabler\n    return tabler.use()",
        "import tabler\ndef g(): return tabler.use()\ndef f(): return [g() for _ in range(3)]",
        "import tabler\ndef f(): return list(map(lambda _: tabler.use(), [1]))",
        "import tabler\ndef outer():\n    t = tabler\n    return lambda: t.use()\nf = outer()",
        "from tabler import use as f",
        "import functools, tabler\n@functools.cache\ndef g(): return tabler.use()\ndef f(): return g()",
    ],
)
def test_finds_packages_wherever_a_function_references_or_imports_them(text: str, folder: Path) -> None:
    install(folder, "tabler", "1.2")
    assert packages_of(made(text)) == (("tabler", "1.2"),)
    assert packages_of(functools.partial(max, key=1, default=2)) == ()
    assert packages_of(functools.partial(made(text), 1)) == (("tabler", "1.2"),)
    assert packages_of(ChunkFunction([max, made(text)])) == (("tabler", "1.2"),)


def test_local_module_has_no_version_unlike_its_imports(folder: Path) -> None:
    install(folder, "tabler", "1.2")
    (folder / "ours.py").write_text("import json, tabler\ndef f(): return json.dumps(tabler.use())\n")
    assert packages_of(made("from ours import f")) == (("tabler", "1.2"),)
    assert packages_of(len) == packages_of(dict) == packages_of(print) == ()


def test_different_or_missing_versions_are_differences(folder: Path) -> None:
    install(folder, "tabler", "1.2")
    assert differences((("tabler", "1.2"),)) == ""
    text = differences((("tabler", "2.0"), ("unheard_of", "3")))
    assert text == "tabler 1.2 (the client has 2.0), no unheard_of (the client has 3)"
